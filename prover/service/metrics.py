"""What the server counts, for Prometheus."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from prover.service.job import Job, State
from prover.service.jobs import Jobs
from prover.service.protocol import Message

_MEMORY = ("live", "pending", "reclaiming", "warm", "lazy", "clean")


class Metrics:
    """Counters that live as long as the server, and gauges that are set when they are read."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._ended = Counter(
            "prover_jobs", "Accepted jobs that have ended.", ["state"], registry=registry
        )
        for state in (State.DONE, State.FAILED, State.CANCELLED):
            self._ended.labels(state)  # there from the start, as 0
        self._refused = Counter(
            "prover_refused_requests", "Requests refused, by status.", ["status"], registry=registry
        )
        self._seconds = Histogram(
            "prover_proof_seconds",
            "How long proofs took, their check included.",
            ["key"],
            buckets=[0.01 * 4**power for power in range(10)],
            registry=registry,
        )
        self._starts = Gauge(
            "prover_worker_starts", "How often a worker process was started.", registry=registry
        )
        self._jobs = Gauge(
            "prover_queue_jobs", "Jobs by where they are.", ["at"], registry=registry
        )
        self._limit = Gauge("prover_queue_limit", "Jobs that may wait.", registry=registry)
        self._answers = Gauge("prover_answers", "Answers that are kept.", registry=registry)
        self._memory = Gauge(
            "prover_memory_bytes", "The proofs' allocator, by state.", ["state"], registry=registry
        )
        self._resident = Gauge(
            "prover_resident_bytes", "Resident set, by process.", ["process"], registry=registry
        )
        self._ready = Gauge("prover_ready", "1 while jobs are taken.", registry=registry)

    def ended(self, job: Job) -> None:
        """Count a job that has ended."""
        self._ended.labels(job.state).inc()
        if job.state is State.DONE:
            self._seconds.labels(job.key).observe(job.seconds)

    def refused(self, status: int) -> None:
        """Count a request that was refused."""
        self._refused.labels(status).inc()

    def text(
        self, jobs: Jobs, look: Message | None, *, ready: bool, starts: int, resident: int
    ) -> bytes:
        """Everything in Prometheus's text format.

        Parameters
        ----------
        look
            What the worker says of itself, if it answers.
        starts
            How often a worker was started.
        resident
            Bytes of this process.
        """
        self._ready.set(ready)
        self._starts.set(starts)
        for at, number in places(jobs).items():
            self._jobs.labels(at).set(number)
        self._limit.set(jobs.limit)
        self._answers.set(jobs.kept)
        self._resident.labels("server").set(resident)
        if look is not None:
            self._resident.labels("worker").set(look["resident"])
            for state in _MEMORY:
                self._memory.labels(state).set(look["memory"][state])
        else:  # no figures are better than old ones
            self._memory.clear()
            self._resident.remove("worker")
        return generate_latest(self._registry)


def places(jobs: Jobs) -> Mapping[str, int]:
    """How many jobs are where."""
    return {
        "arriving": jobs.arriving,
        "waiting": jobs.waiting,
        "running": int(jobs.running is not None),
    }
