"""The layers of proofs by the CUDA backend account for its time, by a clock that is set by hand."""

from typing import Any

import pytest
from emulated import EmulatedKernels
from emulated_device import WholeDevice

from prover.backends.cuda import backend as backend_module
from prover.backends.cuda import msm
from prover.backends.cuda.backend import CudaBackend
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.pipeline import timers as timers_module
from prover.pipeline.engine import Engine
from prover.pipeline.report import LayerReport
from prover.pipeline.timers import Reading, Timers

EVERYTHING, NOTHING = 1 << 40, 0


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes, on a processor, in what a real device takes time for, and nowhere else."""
    now = Reading()

    def slow(place: Any, name: str) -> None:
        function = getattr(place, name)

        def run(*given: Any, **options: Any) -> Any:
            nonlocal now
            now = now.plus(Reading(wall_s=1.0, cpu_s=1.0))
            return function(*given, **options)

        monkeypatch.setattr(place, name, run)

    monkeypatch.setattr(timers_module, "_now", lambda: now.wall_s)
    monkeypatch.setattr(timers_module, "_cpu", lambda: now.cpu_s)
    monkeypatch.setattr(Timers, "_counts", lambda timers: now[2:])
    for name in ("upload", "download", "synchronize", "launch"):
        slow(WholeDevice, name)
    for name in ("launch", "to_host"):
        slow(EmulatedKernels, name)
    for name in ("choose_windows", "affine"):
        slow(msm, name)
    slow(backend_module, "compress")


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize("mode", ["normal", "seed"])
@pytest.mark.parametrize("room", [EVERYTHING, NOTHING])
def test_no_time_is_unexplained(
    multiplier: Any,
    libraries: dict[tuple[str, int], EmulatedKernels],
    monkeypatch: pytest.MonkeyPatch,
    mode: Any,
    room: int,
) -> None:
    """Whether the key stays on the device or is streamed in every proof."""
    monkeypatch.setattr(CudaBackend, "_room", lambda self, key: room)
    monkeypatch.setattr(CudaBackend, "_chunk", lambda self, curve, group, n: 2)
    key, backend = ProvingKey.open(multiplier.key), CudaBackend(WholeDevice(libraries))
    # Planning is done once a size, and in any layer.
    for group in (1, 2):
        for n in {1, 2, key.signals, key.domain}:
            backend._workspace(key.curve, group, n)
    engine = Engine(key, backends=[backend], mode=mode)
    made: list[int] = []
    with Timers() as timers:
        engine.run(
            2,
            lambda number: Witness.open(multiplier.witness),
            lambda number, statement: made.append(number),
        )
    report = LayerReport.of(timers)
    assert made == [1, 2]
    assert sum(row.work_s for row in report.rows if row.path[-1] == "prep MSM") > 10
    proofs = [row for row in report.rows if row.path[0] == "worker"]
    assert {row.path: row.unexplained_s for row in proofs if row.unexplained_s} == {}
