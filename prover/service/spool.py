"""Jobs and answers on disk, so that they outlive the process and a loss of power.

A job is ``ID.wtns`` and ``ID.job``, which is written last; its answer is ``ID.answer``, after which
the other two go. Each appears whole: a server that is killed at any moment leaves a spool that the
next one takes up.
"""

import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prover.errors import MalformedFile, UnwritableOutput, UsageError, reason_of
from prover.service.job import Job, State
from prover.service.secret import SecretFile

_log = logging.getLogger(__name__)
_JOB = re.compile(r"[0-9a-f]{32}\.job", re.ASCII)
_ANSWER = re.compile(r"[0-9a-f]{32}\.answer", re.ASCII)
_LEFTOVER = re.compile(r"[0-9a-f]{32}\.(job|wtns|answer)(\.tmp)?", re.ASCII)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_ANSWER_FIELDS = (
    "id",
    "key",
    "created",
    "finished",
    "seconds",
    "error",
    "reason",
    "proof",
    "public",
)


class Spool:
    """A directory that one server at a time writes; its files are for its owner alone.

    Raises
    ------
    UnwritableOutput
    UsageError
        Another server has it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnwritableOutput(folder, f"cannot be a spool: {reason_of(error)}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UsageError(f"{folder}: is the spool of another server that runs") from None

    def accept(self, job: Job) -> None:
        """Write a job down.

        Raises
        ------
        OSError
            Nothing of the job is left.
        """
        assert job.witness is not None
        try:
            descriptor = os.open(self._folder / f"{job.id}.wtns", _CREATE, 0o600)
            try:
                job.witness.copy_to(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._write(f"{job.id}.job", {"id": job.id, "key": job.key, "created": job.created})
        except BaseException:
            self.forget(job.id)
            raise

    def answer(self, job: Job, state: State) -> None:
        """Write an answer down, and let the job go. If the disk is full, the job stays."""
        fields = {name: getattr(job, name) for name in _ANSWER_FIELDS}
        try:
            self._write(f"{job.id}.answer", {"state": state, **fields})
        except OSError as error:
            _log.warning("job %s: its answer is not in the spool: %s", job.id, error.strerror)
            return
        self._remove(f"{job.id}.job", f"{job.id}.wtns")

    def forget(self, name: str) -> None:
        """Remove all of a job."""
        # The job first: without it the witness is nobody's.
        files = ("job", "wtns", "answer", "job.tmp", "answer.tmp")
        self._remove(*(f"{name}.{suffix}" for suffix in files))

    def load(self) -> Iterator[Job]:
        """The jobs and answers that are there, the earliest first; leftovers are removed.

        Raises
        ------
        MalformedFile
            A file is not one that this class wrote.
        OSError
        """
        files = {path.name for path in self._folder.iterdir()}
        answered = {name.partition(".")[0] for name in files if _ANSWER.fullmatch(name)}
        accepted = {name.partition(".")[0] for name in files if _JOB.fullmatch(name)} - answered
        for name in files:
            stem, _, suffix = name.partition(".")
            needed = {"job": accepted, "wtns": accepted, "answer": answered}.get(suffix, set())
            if _LEFTOVER.fullmatch(name) and stem not in needed:
                self._remove(name)
        jobs = [self._job(stem) for stem in accepted] + [self._answer(stem) for stem in answered]
        yield from sorted(jobs, key=lambda job: job.created)

    def _job(self, stem: str) -> Job:
        fields = self._read(f"{stem}.job", ("id", "key", "created"))
        return Job(witness=SecretFile.of(self._folder / f"{stem}.wtns"), **fields)

    def _answer(self, stem: str) -> Job:
        fields = self._read(f"{stem}.answer", ("state", *_ANSWER_FIELDS))
        return Job(witness=None, **{**fields, "state": State(fields["state"])})

    def _read(self, name: str, expected: tuple[str, ...]) -> dict[str, Any]:
        path = self._folder / name
        try:
            fields = json.loads(path.read_bytes())
            if set(fields) == set(expected):
                return dict(fields)
        except ValueError:
            pass
        raise MalformedFile(path, "is not what a server wrote; move it out of the spool")

    def _write(self, name: str, fields: dict[str, Any]) -> None:
        """Make a file that appears whole and is on the disk."""
        temporary = self._folder / f"{name}.tmp"
        descriptor = os.open(temporary, _CREATE, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(fields).encode())
                file.flush()
                os.fsync(descriptor)
            temporary.replace(self._folder / name)
        except BaseException:  # on a full disk, what is left would keep it full
            self._remove(temporary.name)
            raise
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _remove(self, *names: str) -> None:
        for name in names:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s stays in the spool: %s", name, error.strerror)
