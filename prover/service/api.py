"""The HTTP interface: what each address answers."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from bigmem import osmem
from prover.service import page
from prover.service.access import Guard
from prover.service.job import FINAL, Job, State
from prover.service.jobs import Jobs
from prover.service.keys import KeyFacts
from prover.service.metrics import Metrics, places
from prover.service.process import WorkerProcess
from prover.service.protocol import Message
from prover.service.refusal import Refusal
from prover.service.uploads import receive

LONGEST_WAIT = 300.0
"""Seconds that a request may wait for its job to end."""
SILENCE = 60.0
"""Seconds for which a worker that works may leave a question unanswered."""

_log = logging.getLogger(__name__)
_OPEN = ("/", "/healthz", "/readyz")
"""Paths that need no token: they tell nothing of any job."""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Server": "prover",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Api:
    """The handlers, over what they show.

    Attributes
    ----------
    keys, bad_keys
        Facts of the usable keys by name, and why others are not.
    ready
        Whether the keys have been checked.
    """

    jobs: Jobs
    worker: WorkerProcess
    metrics: Metrics
    guard: Guard
    keys: dict[str, KeyFacts]
    bad_keys: dict[str, str]
    ready: bool = False

    def application(self, *middlewares: Middleware) -> web.Application:
        """The application with all routes, inside of what else every request passes."""
        application = web.Application(middlewares=[*middlewares, self._answer_errors])
        # HEAD would take an answer for fetched.
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/healthz", self._health),
                web.get("/readyz", self._readiness),
                web.get("/keys", self._keys),
                web.get("/status", self._status),
                web.get("/metrics", self._metrics),
                web.post("/jobs", self._submit),
                web.get("/jobs/{id}", self._job, allow_head=False),
                web.delete("/jobs/{id}", self._cancel),
                web.get("/jobs/{id}/proof.json", self._proof, allow_head=False),
                web.get("/jobs/{id}/public.json", self._public, allow_head=False),
            ]
        )
        return application

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check who asks, and answer every refusal in one form."""
        try:
            if request.path not in _OPEN:
                self.guard.check(request.headers)
            return await handler(request)
        except Refusal as refusal:
            return self.refused(refusal)
        except web.HTTPException as error:  # no such path, no such method
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return self.refused(Refusal(error.status, error.reason.lower(), **headers))
        except ConnectionError:  # the client is gone; whatever is answered, nobody hears it
            raise
        except Exception:
            _log.exception("a defect")
            return self.refused(Refusal(500, "a defect of the server; its log says more"))

    def refused(self, refusal: Refusal) -> web.Response:
        """The answer that says so."""
        self.metrics.refused(refusal.status)
        return _json({"error": refusal.reason}, refusal.status, refusal.headers)

    # Jobs

    async def _submit(self, request: web.Request) -> web.Response:
        if not self.ready:
            raise Refusal(503, "the keys are being checked; try again soon", Retry_After="1")
        async with self.jobs.place():
            job = Job(*await receive(request, self.keys))
            try:
                await self.jobs.accept(job)
            except BaseException:
                if job.witness is not None:
                    await asyncio.to_thread(job.witness.close)
                raise
        return _json(self._shown(job), 202, {"Location": f"/jobs/{job.id}"})

    async def _job(self, request: web.Request) -> web.StreamResponse:
        job = self.jobs.find(request.match_info["id"])
        if seconds := _seconds(request.query.get("wait", "0")):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.ended.wait(), seconds)
        look = await self.worker.look() if job is self.jobs.running else None
        # Nothing is awaited from here on: the job could end between what is told and what counts.
        shown = self._shown(job)
        if job is self.jobs.running:
            shown["progress"] = self._progress(job, look)
        parts = ("proof", "public") if shown["state"] in FINAL else ()
        return await self._sent(request, job, _json(shown), *parts)

    async def _proof(self, request: web.Request) -> web.StreamResponse:
        job = self._done(request)
        return await self._sent(request, job, _file(job.proof), "proof")

    async def _public(self, request: web.Request) -> web.StreamResponse:
        job = self._done(request)
        return await self._sent(request, job, _file(job.public), "public")

    async def _cancel(self, request: web.Request) -> web.Response:
        job = self.jobs.find(request.match_info["id"])
        forgotten = job.state in FINAL
        await self.jobs.cancel(job)
        if forgotten:
            return _json({"id": job.id, "state": "forgotten"})
        return _json(self._shown(job), 202 if job.state is State.CANCELLING else 200)

    def _done(self, request: web.Request) -> Job:
        job = self.jobs.find(request.match_info["id"])
        if job.state is not State.DONE:
            raise Refusal(409, f"the job is {job.state}: {job.reason or 'it has no proof'}")
        return job

    async def _sent(
        self, request: web.Request, job: Job, response: web.Response, *parts: str
    ) -> web.StreamResponse:
        """Send an answer, and only then take it for fetched."""
        await response.prepare(request)
        await response.write_eof()
        await self.jobs.fetched(job, *parts)
        return response

    def _shown(self, job: Job) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": job.id,
            "key": job.key,
            "state": job.state,
            "created": job.created,
        }
        if job.state is State.QUEUED:
            shown["position"] = self.jobs.position(job)
        elif job.state is State.CANCELLING:
            shown["note"] = "the proof under way runs to its end; what comes of it is discarded"
        elif job.state is State.FAILED:
            shown |= {"error": job.error, "reason": job.reason}
        elif job.state is State.DONE:
            shown |= {
                "seconds": job.seconds,
                "proof": json.loads(job.proof),
                "public": json.loads(job.public),
            }
        return shown

    def _progress(self, job: Job, look: Message | None) -> dict[str, Any]:
        return {
            "seconds": time.monotonic() - job.began,
            "expected_seconds": self.jobs.expected(job.key),
            "layers_done": look["layers"] if look else [],
            "tries": job.tries,
        }

    # The server itself

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(
            text=page.HTML,
            content_type="text/html",
            headers={**_HEADERS, "Content-Security-Policy": page.POLICY},
        )

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"healthy": True})

    async def _readiness(self, request: web.Request) -> web.Response:
        silence = self.worker.silence()
        if self._takes_jobs and silence < SILENCE:
            return _json({"ready": True})
        reason = "the server is stopping" if self.jobs.closed else "no worker has checked the keys"
        if self._takes_jobs:
            reason = f"the worker has been silent for {silence:.0f} s"
        return _json({"ready": False, "reason": reason}, 503)

    @property
    def _takes_jobs(self) -> bool:
        return self.ready and not self.jobs.closed and self.worker.running

    async def _keys(self, request: web.Request) -> web.Response:
        return _json(
            {
                "keys": {name: facts.to_json() for name, facts in self.keys.items()},
                "bad": self.bad_keys,
            }
        )

    async def _status(self, request: web.Request) -> web.Response:
        look = await self.worker.look()
        running = self.jobs.running
        return _json(
            {
                "state": self._state(),
                "queue": {**places(self.jobs), "limit": self.jobs.limit},
                "running": running
                and {
                    "id": running.id[:8],
                    "key": running.key,
                    "state": running.state,
                    **self._progress(running, look),
                },
                "answers": {"kept": self.jobs.kept, "unfetched": self.jobs.unfetched},
                "memory": look and look["memory"],
                "resident": {
                    "server": osmem.resident_bytes(),
                    "worker": look and look["resident"],
                },
                "worker_starts": self.worker.starts,
                "proofs": list(self.jobs.recent),
                "keys": {name: facts.to_json() for name, facts in self.keys.items()},
                "bad_keys": self.bad_keys,
            }
        )

    def _state(self) -> str:
        if self.jobs.closed:
            return "stopping"
        return "serving" if self._takes_jobs else "starting"

    async def _metrics(self, request: web.Request) -> web.Response:
        text = self.metrics.text(
            self.jobs,
            await self.worker.look(),
            ready=self._takes_jobs,
            starts=self.worker.starts,
            resident=osmem.resident_bytes(),
        )
        return web.Response(
            body=text, headers={**_HEADERS, "Content-Type": "text/plain; version=0.0.4"}
        )


def _json(
    value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.json_response(value, status=status, headers={**_HEADERS, **(headers or {})})


def _file(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json", headers=_HEADERS)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT:
        raise Refusal(422, f"wait is no number of seconds from 0 to {LONGEST_WAIT:.0f}")
    return seconds
