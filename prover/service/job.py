"""One job, from acceptance to its answer."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum

from prover.service.secret import SecretFile


class State(StrEnum):
    """Where a job is; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = (State.DONE, State.FAILED, State.CANCELLED)
_OWN_BYTES = 2048
"""Of memory that a job takes beside its texts, with its place among the jobs; rounded up."""


@dataclass(eq=False)
class Job:
    """One proof that was asked for.

    Attributes
    ----------
    key
        The key's name.
    witness
        None once the job has ended.
    created, finished
        Seconds since 1970.
    began
        By `time.monotonic`, of the last try.
    tries
        How often a worker was asked.
    starts
        How often no worker could be started for it.
    error, reason
        Of a job that failed: the kind of error and a line.
    proof, public
        Of a job that is done: the files' text.
    unfetched
        Which parts of the answer nobody has read yet.
    """

    key: str
    witness: SecretFile | None
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    created: float = field(default_factory=time.time)
    state: State = State.QUEUED
    began: float = 0.0
    finished: float = 0.0
    seconds: float = 0.0
    tries: int = 0
    starts: int = 0
    error: str = ""
    reason: str = ""
    proof: str = ""
    public: str = ""
    unfetched: set[str] = field(default_factory=lambda: {"proof", "public"})
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def nbytes(self) -> int:
        """Of memory, once the job has ended: one without a proof is not free."""
        return _OWN_BYTES + len(self.proof) + len(self.public) + len(self.reason)

    @property
    def spare(self) -> bool:
        """Whether it may be forgotten early: it has ended, and no proof is lost with it."""
        return self.state in FINAL and not (self.state is State.DONE and self.unfetched)
