"""The CUDA backend: a proof whose vectors never leave the device."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

import bigmem
from bigmem.sizes import format_size
from prover.backends.base import Backend, Bytes, Operands, Sums
from prover.backends.cpu.backend import CpuBackend
from prover.backends.cuda.device import Array, Device
from prover.backends.cuda.matrices import Matrices, compress
from prover.backends.cuda.point_sums import DevicePointSums, PointSums, Sorted
from prover.backends.cuda.program import memory_errors
from prover.backends.cuda.resident import Resident
from prover.backends.cuda.transform import Transform
from prover.curves import SCALAR_BYTES, Curve
from prover.errors import OutOfDeviceMemory
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey

_LEAST_CHUNK = 1 << 10
"""Points of a chunk, unless there are fewer: with less, the copies cost more than the sums."""

_CHUNK_SHARES = (0.85, 0.4)
"""Of the memory that is left: chunks of different lengths leave gaps, which count in it, too. Where
the first was too much, the second is tried."""

_THREADS = 256
_RESERVE = 0.02
"""Of the device's memory: what its pool loses to rounding and to gaps."""


class CudaBackend(Backend):
    """Arithmetic of a proof on one GPU; single points are added on the CPU.

    The parts of a key stay on the device for later proofs as far as they fit beside a proof's
    vectors. What does not fit is copied in chunks in every proof. One proof runs at a time.

    Parameters
    ----------
    device
        Where to compute.
    point_sums
        Who adds up points; by default the device.
    threads
        CPU threads that read a key's matrices; 0 for every core.
    """

    name: ClassVar[str] = "cuda"

    def __init__(
        self, device: Device, point_sums: PointSums | None = None, threads: int = 0
    ) -> None:
        self._device = device
        self._threads = threads
        self._point_sums = DevicePointSums(device) if point_sums is None else point_sums
        self._host = CpuBackend()
        self._resident: Resident[Any] = Resident()
        self._on_host: WeakKeyDictionary[ProvingKey, Matrices] = WeakKeyDictionary()
        self._transforms: dict[str, Transform] = {}
        self._chunk_share = _CHUNK_SHARES[0]
        self._seconds: dict[str, float] = {}
        self._stages: list[tuple[str, Any, Any]] = []  # of this proof: name, begin and end
        self._lock = threading.Lock()

    def sums(
        self, key: ProvingKey, witness: Witness, allocator: bigmem.Allocator | None = None
    ) -> Sums:
        """See `Backend`; ``allocator`` is not used.

        Raises
        ------
        OutOfDeviceMemory
            If not even the vectors fit; the backend stays usable.
        """
        return self._sums_of(key, Operands(witness.values), witness.drop)

    def sums_of(
        self, key: ProvingKey, operands: Operands, allocator: bigmem.Allocator | None = None
    ) -> Sums:
        """See `Backend` and `sums`."""
        return self._sums_of(key, operands, lambda: None)

    def device_seconds(self) -> dict[str, float]:
        """See `Backend`."""
        return dict(self._seconds)

    def _sums_of(self, key: ProvingKey, operands: Operands, drop: Callable[[], None]) -> Sums:
        with bigmem.layer("sums"), self._lock, self._device.use():
            refused = ""
            # If memory was lost to others or to gaps: once more, with nothing kept.
            for number, share in enumerate(_CHUNK_SHARES):
                self._chunk_share = share
                try:
                    with memory_errors():
                        self._device.prepare(key.curve)
                        with bigmem.layer("prep MSM"):
                            room = self._room(key) if number == 0 else 0
                            # What a proof that failed has left may use memory that is free now.
                            self._device.rejoin()
                        return self._sums(key, operands, drop, room)
                except MemoryError as error:
                    refused = str(error)  # its frames hold what was allocated
                self._give_back()
        raise OutOfDeviceMemory(
            f"{key.path}: a proof needs at least {format_size(self._least_bytes(key))} of GPU "
            "memory for its vectors and sums and some for its matrices, of "
            f"{format_size(self._device.limit)} that may be used{_last(refused)}; use --backend cpu"
        )

    def add(self, curve: Curve, group: int, p: Bytes, q: Bytes) -> Bytes:
        """See `Backend`."""
        return self._host.add(curve, group, p, q)

    def scale(self, curve: Curve, group: int, p: Bytes, scalar: int) -> Bytes:
        """See `Backend`."""
        return self._host.scale(curve, group, p, scalar)

    # The steps of a proof

    def _sums(
        self, key: ProvingKey, operands: Operands, drop: Callable[[], None], room: int
    ) -> Sums:
        self._stages.clear()  # of a proof that failed
        with self._stage("witness"):
            w = self._device.upload(operands.w)
            drop()
        self._were_read(operands, operands.w)
        with bigmem.layer("NTT/MSM-H"):
            h = self._quotient_values(key, operands, w, room)
            scalars = _Scalars(h)
            del h
            sum_h = self._sum(key, "msm H", 1, key.h1, scalars, room)
            with bigmem.layer("release"):
                del scalars
        scalars = _Scalars(w)
        sum_a = self._sum(key, "msm A", 1, key.a1, scalars, room)
        sum_b1 = self._sum(key, "msm B1", 1, key.b1, scalars, room)
        with bigmem.layer("B in G2"):
            sum_b2 = self._sum(key, "msm B2", 2, key.b2, scalars, room)
        sum_c = self._sum(key, "msm C", 1, key.c1, scalars, room)
        # The ends of all sums, of which only the last may still be running
        with bigmem.layer("msm C"), bigmem.layer("tail MSMs"):
            begin = self._device.record()
            sums = Sums(a=sum_a(), b1=sum_b1(), b2=sum_b2(), c=sum_c(), h=sum_h())
            self._ended("msm C", begin)
            self._add_seconds()
        with bigmem.layer("release"):
            del w, scalars, sum_a, sum_b1, sum_b2, sum_c, sum_h
        return sums

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """A layer that waits for what it has started, and that the device's own clock times."""
        with bigmem.layer(name):
            begin = self._device.record()
            yield
            self._ended(name, begin)
            self._device.synchronize()

    def _ended(self, name: str, begin: Any) -> None:
        """Note the event at the end of a stage; asking for its time would take some, too."""
        self._stages.append((name, begin, self._device.record()))

    def _add_seconds(self) -> None:
        for name, begin, end in self._stages:
            seconds = self._device.seconds(begin, end)
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._stages.clear()

    def _quotient_values(self, key: ProvingKey, operands: Operands, w: Array, room: int) -> Array:
        vectors = operands.vectors()
        if vectors is None:
            return self._quotient_values_of(key, w, room)
        h = self._quotient_values_from(key.curve, *vectors)
        self._were_read(operands, *vectors)
        del vectors
        operands.read()
        return h

    def _were_read(self, operands: Operands, *arrays: Bytes) -> None:
        if operands.sole:
            with bigmem.layer("release"):
                self._device.was_read(*arrays)

    def _quotient_values_from(self, curve: Curve, a: Bytes, b: Bytes, c: Bytes) -> Array:
        """The steps of `prover.qap.quotient_values`, on vectors of the host."""
        device, transform = self._device, self._transform(curve)
        with self._stage("transfer"):
            h, x = device.upload(a), device.upload(b)
        with self._stage("ntt"):
            transform.odd_coset(h)
            transform.odd_coset(x)
            self._pointwise(curve, "multiply", h, x, h)
        with self._stage("transfer"):
            device.upload(c, x)
            device.release_uploads()  # wiped beside the sums, and back for the next proof
        with self._stage("ntt"):
            transform.odd_coset(x)
            self._pointwise(curve, "difference", h, x, h)
            del x  # what is allocated there comes in the stream's turn
        return h

    def _quotient_values_of(self, key: ProvingKey, w: Array, room: int) -> Array:
        """The same of a witness on the device, by the matrices of the key."""
        matrices = self._resident_matrices(key, room)
        if matrices is None:
            return self._quotient_values_in_two(key, w)
        device, curve, n = self._device, key.curve, key.domain
        ab, h = device.empty((2, n, SCALAR_BYTES)), device.empty((n, SCALAR_BYTES))
        transform = self._transform(curve)
        with self._stage("sparse"):
            matrices.multiply(device, curve, w, ab)
            self._pointwise(curve, "multiply", *ab, h)
        with self._stage("ntt"):
            transform.odd_coset(ab)
            transform.odd_coset(h)
            self._pointwise(curve, "quotient", *ab, h, h)
        return h

    def _quotient_values_in_two(self, key: ProvingKey, w: Array) -> Array:
        """The same in two vectors instead of three, with one product more of each matrix."""
        device, curve, n = self._device, key.curve, key.domain
        with bigmem.layer("sparse"):
            matrices = self._compressed(key).to_device(device)
        h, x = device.empty((n, SCALAR_BYTES)), device.empty((n, SCALAR_BYTES))
        transform = self._transform(curve)
        for matrix, vector in enumerate((h, x)):
            with self._stage("sparse"):
                matrices.multiply_one(device, curve, w, matrix, vector)
            with self._stage("ntt"):
                transform.odd_coset(vector)
        with self._stage("sparse"):
            self._pointwise(curve, "multiply", h, x, h)
            matrices.multiply_one(device, curve, w, 0, x)
            matrices.multiply_one(device, curve, w, 1, x, times=True)
        with self._stage("ntt"):
            transform.odd_coset(x)
            self._pointwise(curve, "difference", h, x, h)
        return h

    def _pointwise(self, curve: Curve, kernel: str, *vectors: Array) -> None:
        n = len(vectors[0])
        self._device.launch(curve, kernel, -(-n // _THREADS), _THREADS, *vectors, np.uint64(n))

    def _resident_matrices(self, key: ProvingKey, room: int) -> Matrices | None:
        found: Matrices | None = self._resident.find(key, "matrices")
        if found is not None:
            return found
        with bigmem.layer("sparse"):
            host = self._compressed(key)
            kept: Matrices | None = self._resident.keep(
                key, "matrices", host.nbytes, room, lambda: host.to_device(self._device)
            )
        if kept is not None:
            del self._on_host[key]
        return kept

    def _compressed(self, key: ProvingKey) -> Matrices:
        """The matrices in host memory, where those stay that the device has no room for."""
        if key not in self._on_host:
            self._on_host[key] = compress(key.coefficients, key.domain, key.drop, self._threads)
        return self._on_host[key]

    def _sum(
        self, key: ProvingKey, stage: str, group: int, points: Bytes, scalars: "_Scalars", room: int
    ) -> Callable[[], Bytes]:
        """Start the sum of scalars times points, which are those of the last scalars.

        Returns
        -------
        What waits for its end.
        """
        with bigmem.layer(stage):
            n = len(scalars.values)
            lacking = n - len(points)
            with bigmem.layer("prep MSM"):
                begin = self._device.record()
                kept: Array | None = self._resident.find(key, stage)
                # A sum that is too long to be sorted at once is streamed, too.
                if kept is None and n <= self._point_sums.most_scalars(key.curve):
                    nbytes = n * points.shape[1]
                    kept = self._resident.keep(
                        key, stage, nbytes, room, lambda: self._padded(points, lacking, key)
                    )
            if kept is None:
                total = self._streamed_sum(key, group, points, scalars.values[lacking:])
                with bigmem.layer("tail MSMs"):
                    self._ended(stage, begin)
                return lambda: total
            if scalars.sorted is None:
                scalars.sorted = self._point_sums.sort(key.curve, scalars.values)
            with bigmem.layer("tail MSMs"):
                pending = self._point_sums.add(key.curve, group, kept, scalars.sorted)
                self._ended(stage, begin)
                self._device.synchronize()
            return lambda: self._point_sums.finish(pending)

    def _padded(self, points: Bytes, lacking: int, key: ProvingKey) -> Array:
        """A copy of points behind infinities, so that all sums over w share its sorted scalars."""
        rows = self._device.empty((lacking + len(points), points.shape[1]))
        rows[:lacking] = 0
        self._device.upload(points, rows[lacking:], key.drop)
        return rows

    def _streamed_sum(self, key: ProvingKey, group: int, points: Bytes, scalars: Array) -> Bytes:
        """A sum in chunks; while one is added up, the next is copied to the other buffer."""
        curve, device = key.curve, self._device
        with bigmem.layer("prep MSM"):
            chunk = self._chunk(curve, group, len(points))
            pieces = [points[start : start + chunk] for start in range(0, len(points), chunk)]
            buffers = [device.empty(piece.shape) for piece in pieces[:2]]
            device.synchronize()  # nothing that was started uses their memory any more
        total = np.zeros((1, points.shape[1]), np.uint8)  # infinity

        def copy(number: int) -> None:
            if number < len(pieces):
                piece = pieces[number]
                with bigmem.layer("prep MSM"), device.ahead():
                    device.upload(piece, buffers[number % 2][: len(piece)], key.drop)

        try:
            copy(0)
            for number, piece in enumerate(pieces):
                start = number * chunk
                ready = self._point_sums.sort(curve, scalars[start : start + len(piece)])
                device.rejoin()
                some = buffers[number % 2][: len(piece)]
                with bigmem.layer("tail MSMs"):
                    pending = self._point_sums.add(curve, group, some, ready)
                copy(number + 1)  # over points that the last chunk has added up
                with bigmem.layer("tail MSMs"):
                    total = self.add(curve, group, total, self._point_sums.finish(pending))
                del ready, pending  # before the next are made
        finally:
            device.rejoin()  # what is allocated from here on may be these buffers
        return total

    def _chunk(self, curve: Curve, group: int, n: int) -> int:
        """The most points at a time for which they, the next ones and the workspace fit."""
        most = self._point_sums.most_scalars(curve)
        available = self._device.available * self._chunk_share
        row, buffers = curve.point_bytes(group), 1
        while n > most or (
            n > _LEAST_CHUNK and buffers * n * row + self._workspace(curve, group, n) > available
        ):
            n, buffers = -(-n // 2), 2
        return max(n, 1)

    def _transform(self, curve: Curve) -> Transform:
        found = self._transforms.get(curve.name)
        if found is None:
            found = self._transforms[curve.name] = Transform(self._device, curve)
        return found

    # Memory

    def _room(self, key: ProvingKey) -> int:
        """Bytes that parts of keys may take beside a proof of this one."""
        longest = max(key.signals, key.domain)
        workspace = max(self._workspace(key.curve, group, longest) for group in (1, 2))
        self._transform(key.curve)
        tables = sum(
            transform.room_for(key.domain if transform.curve == key.curve else 0)
            for transform in self._transforms.values()
        )
        vectors = (key.signals + 3 * key.domain) * SCALAR_BYTES
        # While the sums are made, only w and h are left of the vectors.
        during_sums = (key.signals + key.domain) * SCALAR_BYTES + workspace
        needed = max(vectors, during_sums) + tables
        return max(0, int(self._device.reach * (1 - _RESERVE)) - needed)

    def _workspace(self, curve: Curve, group: int, n: int) -> int:
        return self._point_sums.workspace(curve, group, n)

    def _least_bytes(self, key: ProvingKey) -> int:
        """For the transforms, the sum over h, and that over w in G2, with nothing kept."""
        w, h = key.signals * SCALAR_BYTES, key.domain * SCALAR_BYTES
        wanted = [w + 2 * h]
        with suppress(MemoryError):  # too little even to load the kernels, which would tell
            wanted.append(w + h + self._least_sum_bytes(key.curve, 1, key.domain))
            wanted.append(w + self._least_sum_bytes(key.curve, 2, key.signals))
        return max(wanted) + Transform.table_bytes(key.domain)

    def _least_sum_bytes(self, curve: Curve, group: int, n: int) -> int:
        chunk, buffers = n, 1
        while chunk > _LEAST_CHUNK:
            chunk, buffers = -(-chunk // 2), 2
        return self._workspace(curve, group, chunk) + buffers * chunk * curve.point_bytes(group)

    def _give_back(self) -> None:
        self._resident.shrink(0)
        for transform in self._transforms.values():
            transform.drop()
        self._device.free_unused()


def _last(refused: str) -> str:
    """What was said when memory was refused: it may have been the host's."""
    line, _, _ = refused.partition("\n")
    return f" (the last refusal: {line})" if line else ""


class _Scalars:
    """Scalars on the device, sorted when the first sum wants it, for all that follow."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.sorted: Sorted | None = None
