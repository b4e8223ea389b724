"""The client of a cluster: sends witnesses, checks what comes back, writes it."""

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import bigmem
from prover import groth16
from prover.cluster.identity import KeyIdentity
from prover.errors import (
    MismatchedFiles,
    ProverError,
    UnavailableBackend,
    UnreadableFile,
    UsageError,
    reason_of,
)
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import Proof
from prover.pipeline.batch import Made, Outputs, matched_inputs, write
from prover.pipeline.report import LayerReport
from prover.pipeline.single import Statement
from prover.verify import Unverifiable, VerificationKey, verify

try:
    import dask
    from distributed import Client, Future, KilledWorker, wait
    from distributed.client import FuturesCancelledError
    from distributed.comm.addressing import get_address_host, parse_address, parse_host_port
    from distributed.comm.registry import get_backend
    from distributed.security import Security

    from prover.cluster import remote
except ImportError as error:
    raise UnavailableBackend(
        f"--scheduler needs Dask's distributed ({error}): pip install 'bigmem[dask]'"
    ) from error

CONNECT_SECONDS = 10.0
# How long nothing may happen before we look whether anybody is at work.
_LOOK_SECONDS = 5.0
# Orders under way for each thread of the cluster: one at work, one that is there when it ends.
_ORDERS = 2
_LONG_TO_READ = 2 << 30


class ClusterFailure(ProverError):
    """The cluster did not make a proof that can be made."""


@dataclass(frozen=True)
class _Sent:
    """An order under way: its number, its witness, and the signals that it must prove."""

    number: int
    witness: str
    public: list[int]


class ClusterBatch:
    """Proofs of every witness, ``repeat`` times over, made by workers, each checked and written.

    A worker's proof is checked here, against the client's key and public signals, before it is
    written. What a lost worker had in hand is made by others, as often as the scheduler allows one
    task to lose its worker (``distributed.scheduler.allowed-failures``).

    Parameters
    ----------
    key
        As on this machine; workers need a file with the same content, see `KeyIdentity.find`.
    witnesses
        Files of this machine; what they hold is sent.
    scheduler
        Address, for example ``"tls://10.0.0.5:8786"``.
    settings
        How workers make proofs.
    folder
        As for `prover.pipeline.batch.Batch`.
    threads
        For the check of the key; 0 for every core.
    notify
        Told in lines what is under way.

    Attributes
    ----------
    inputs
        The files that no output may replace, links resolved.
    outputs
        The files that are made.
    report
        None: where time went is known on other machines.

    Raises
    ------
    ProverError
        From the constructor if a file is unusable or a witness belongs to another circuit.
    """

    report: LayerReport | None = None

    def __init__(
        self,
        key: ProvingKey,
        witnesses: Sequence[str],
        *,
        scheduler: str,
        settings: remote.Settings,
        repeat: int,
        folder: Path,
        threads: int = 0,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        start = time.perf_counter()
        self.inputs = matched_inputs(key, witnesses)
        key.check(threads=threads)
        if Path(key.path).stat().st_size > _LONG_TO_READ:
            notify(f"{key.path}: computing its SHA-256, by which workers will know it")
        self._identity = KeyIdentity.of(key.path)
        self._key_check_s = time.perf_counter() - start
        self._key = key
        self._verification_key = VerificationKey.from_zkey(key)
        self._scheduler = scheduler
        self._settings = settings
        self.outputs = Outputs(folder, witnesses, repeat)
        self._notify = notify

    def __len__(self) -> int:
        return len(self.outputs)

    def run(self, advance: Callable[[Made], None]) -> dict[str, object]:
        """Make all proofs; ``advance`` is told of each, in the order they come.

        Returns
        -------
        The figures as a JSON object: the seconds of the whole, and of each proof its files, its
        worker, and the seconds that it took there.

        Raises
        ------
        ProverError
            At the first witness that does not satisfy the circuit, worker that refuses or returns
            no valid proof, circuit that lost too many workers, or file that cannot be written. What
            was written before stays.
        """
        start = time.perf_counter()
        each: dict[int, dict[str, object]] = {}
        with _connected(self._scheduler) as client:
            for sent, answer in self._answers(client):
                made = self._finish(sent, answer)
                each[sent.number] = {**asdict(made), "worker": answer.worker}
                advance(made)
        return {
            "curve": self._key.curve.name,
            "constraints": self._key.constraints,
            "domain": self._key.domain,
            "public": self._key.public,
            "scheduler": self._scheduler,
            "workers": len({one["worker"] for one in each.values()}),
            "proofs": len(each),
            "key_check_s": self._key_check_s,
            "wall_s": time.perf_counter() - start,
            "each": [each[number] for number in sorted(each)],
        }

    def _answers(self, client: Client) -> Iterator[tuple[_Sent, remote.Answer]]:
        """Every proof, as it comes."""
        returned = 0
        try:
            self._warn_of_listeners(client)
            for pair in self._pairs(client):
                returned += 1
                yield pair
        except (OSError, FuturesCancelledError):
            raise ClusterFailure(
                f"{self._scheduler}: lost the scheduler, with {returned} of {len(self)} proofs made"
            ) from None

    def _pairs(self, client: Client) -> Iterator[tuple[_Sent, remote.Answer]]:
        """The same; never more orders are under way than the cluster needs."""
        numbers = iter(range(1, len(self) + 1))
        under_way: dict[Future[Any], _Sent] = {}
        while True:
            room = max(1, _ORDERS * sum(client.nthreads().values())) - len(under_way)
            for number in islice(numbers, max(0, room)):
                future, sent = self._send(client, number)
                under_way[future] = sent
            if not under_way:
                return
            for future in self._ended(client, list(under_way)):
                sent = under_way.pop(future)
                answer = self._answer(future, sent)
                future.release()  # the scheduler forgets the witness
                yield sent, answer

    def _send(self, client: Client, number: int) -> "tuple[Future[Any], _Sent]":
        path = self.outputs.witness(number)
        witness = Witness.open(path)
        groth16.match(self._key, witness)
        order = remote.Order(self._identity, path, _content(path), self._settings)
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1PiB"}):
            future = client.submit(remote.prove, order, pure=False)
        return future, _Sent(number, path, groth16.public_signals(self._key, witness.values))

    def _ended(self, client: Client, futures: "list[Future[Any]]") -> "list[Future[Any]]":
        """Those of the futures that have an outcome: at least one, however long that takes."""
        told = False
        while True:
            try:
                return list(wait(futures, _LOOK_SECONDS, return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                if not told and not client.nthreads():
                    self._notify(f"{self._scheduler}: there is no worker; waiting for one")
                    told = True

    def _answer(self, future: "Future[Any]", sent: _Sent) -> remote.Answer:
        try:
            answer = future.result()
        except KilledWorker as error:
            raise ClusterFailure(
                f"{sent.witness}: no proof, for {error.allowed_failures + 1} workers were lost "
                "while they made it; their logs may say why (memory?)"
            ) from None
        except (OSError, FuturesCancelledError):
            raise
        except Exception as error:  # whatever was raised there
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ClusterFailure(
                f"{sent.witness}: no proof, for a worker failed ({reason}); is this version of "
                "bigmem installed there?"
            ) from error
        if isinstance(answer, remote.Answer):
            return answer
        assert isinstance(answer, remote.Refusal)
        if answer.about_input:
            raise MismatchedFiles(answer.message)
        raise ClusterFailure(f"worker {answer.worker}: {answer.message}")

    def _finish(self, sent: _Sent, answer: remote.Answer) -> Made:
        proof = self._proof(answer)
        if proof is None or not self._proves(proof, sent.public):
            raise ClusterFailure(
                f"worker {answer.worker}: its proof of {sent.witness} is not valid, and was not "
                "written; something is wrong with that machine"
            )
        proof_path, public_path = self.outputs.files(sent.number)
        with bigmem.layer("write"):
            write(Statement(proof, sent.public), proof_path, public_path, self.inputs)
        return Made(sent.witness, str(proof_path), str(public_path), answer.wall_s, {})

    def _proof(self, answer: remote.Answer) -> Proof | None:
        curve = self._key.curve
        points = ((answer.a, 1), (answer.b, 2), (answer.c, 1))
        if any(len(point) != curve.point_bytes(group) for point, group in points):
            return None
        a, b, c = (np.frombuffer(point, np.uint8).reshape(1, -1) for point, _ in points)
        return Proof(curve, a, b, c)

    def _proves(self, proof: Proof, public: list[int]) -> bool:
        try:
            return verify(self._verification_key, public, proof)
        except Unverifiable:
            return False

    def _warn_of_listeners(self, client: Client) -> None:
        addresses = [self._scheduler, *client.nthreads()]
        bare = [address for address in addresses if not _is_private(address)]
        if bare:
            self._notify(
                f"warning: witnesses are secret, and travel unencrypted to {bare[0]}; use tls://"
            )


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    _check_address(address)
    with _quiet():
        try:
            client = Client(
                address, timeout=CONNECT_SECONDS, name="prover-batch", set_as_default=False
            )
        except OSError as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"--scheduler {address}: cannot be reached: {reason}") from error
        with client, client.as_current():
            yield client


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask from telling, in pages, what is told in a line here."""
    log = logging.getLogger("distributed.client")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions of Python and Dask that differ
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)


def _check_address(address: str) -> None:
    """Refuse what would leave a client behind that takes long to give up."""
    protocol, place = parse_address(address)
    try:
        get_backend(protocol)
        parse_host_port(place)
    except ValueError as error:
        raise UsageError(
            f"--scheduler {address}: {error}; write, for example, tls://10.0.0.5:8786"
        ) from None
    if protocol == "tls" and not Security().get_connection_args("client").get("ssl_context"):
        raise UsageError(
            f"--scheduler {address}: this machine has no certificate for TLS; Dask's configuration "
            "names it under distributed.comm.tls (see docs/dask.md)"
        )


def _is_private(address: str) -> bool:
    """Whether nobody can listen: encrypted, or within this machine."""
    if address.startswith(("tls://", "inproc://")):
        return True
    return get_address_host(address) in ("127.0.0.1", "::1", "localhost")


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableFile(path, f"cannot be read: {reason_of(error)}") from None
