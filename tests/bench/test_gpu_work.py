"""What the GPU bench counts, checks and leaves out, without a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from emulated_device import EmulatedDevice

from bench import gpu, gpu_times
from bench.gpu_checks import wrong_transforms
from bench.gpu_run import Run
from bench.gpu_stand_in import stand_in
from bench.gpu_work import Work, add_work, coset_work, percent, proof_work, sort_work, split_work
from prover.backends.cuda.msm import choose_windows
from prover.backends.cuda.transform import Transform
from prover.backends.cuda.windows import Windows
from prover.curves import BLS12_381, BN254, CURVES
from prover.errors import UnavailableBackend

FIGURES = {
    "copy_TB_s": 4.0,
    "products_G_s": {"bn128": 60.0},
    "rates_G_s": {"bn128": {"mixed additions G1": 6.0, "mixed additions G2": 2.0}},
}


class Emulated(EmulatedDevice):
    uploads = "pinned"

    @property
    def held(self):
        return self.peak

    def free_unused(self):
        self.peak = self.used


@pytest.fixture
def run():
    return Run(Emulated(), 1000)


@pytest.fixture(params=list(CURVES))
def curve(request):
    return CURVES[request.param]


@pytest.mark.parametrize("log", [10, 12, 15])
def test_transforms_of_known_polynomials(curve, log):
    assert wrong_transforms(EmulatedDevice(), curve, log) == []


def broken(name, spoil):
    """A transform that spoils what one of its ways gives."""

    class Broken(Transform):
        def __init__(self, *given):
            super().__init__(*given)
            right = getattr(self, name)

            def wrong(x):
                right(x)
                spoil(x)

            setattr(self, name, wrong)

    return Broken


def swap_halves(x):
    x[...] = np.roll(x, len(x) // 2, axis=0)


def lose_the_end(x):
    x[-1] = 0


@pytest.mark.parametrize("spoil", [swap_halves, lose_the_end])
@pytest.mark.parametrize("name", ["merge", "split", "odd_coset"])
def test_wrong_transforms_are_found(monkeypatch, name, spoil):
    monkeypatch.setattr("bench.gpu_checks.Transform", broken(name, spoil))
    found = wrong_transforms(EmulatedDevice(), BN254, 11)
    assert {"odd_coset": "coset"}.get(name, name) in found


def test_a_table_that_is_wrong_at_its_end_is_found(monkeypatch):
    class Short(Transform):
        def _table(self, log):
            table = super()._table(log)
            table[len(table) // 2 :] = table[: len(table) // 2]
            return table

    monkeypatch.setattr("bench.gpu_checks.Transform", Short)
    assert "merge" in wrong_transforms(EmulatedDevice(), BN254, 11)


def test_work_at_the_ceilings_has_all_of_the_rate():
    work = Work(products=60_000_000, additions=(6_000_000, 2_000_000), nbytes=4_000_000_000)
    assert work.arithmetic_ms(FIGURES, BN254) == pytest.approx(3)
    assert work.arithmetic_share(FIGURES, BN254, 6) == pytest.approx(0.5)
    assert work.copy_share(FIGURES, 2) == pytest.approx(0.5)
    assert percent(0.5) == "50 %"


def test_rates_that_were_not_measured_give_no_share():
    assert Work(products=1).arithmetic_share(FIGURES, BLS12_381, 1) is None
    assert Work(nbytes=1).copy_share({}, 1) is None
    assert percent(None) == "-"


def test_a_split_reads_and_writes_all_in_every_pass():
    """Of 2^18 in two passes of nine stages, the last reads half as many twiddles as elements."""
    work = split_work(18)
    assert work.products == 18 << 17
    assert work.nbytes == 32 * (2 * 2 * (1 << 18) + (1 << 8) + (1 << 17))
    turning = coset_work(18)
    assert turning.nbytes == 2 * work.nbytes - 2 * 32 * (1 << 18)


def test_a_sum_adds_once_a_digit():
    windows = Windows(254, 20)  # 13 bits each: two passes of the sort
    assert add_work(BN254, 2, windows, 100, 7) == Work(0, (0, 2007), 2007 * (8 + 128))
    assert sort_work(windows, 300, 100).nbytes == 32 * 400 + 2000 * (12 + 4 * 8)


def test_a_proof_of_zeros_and_ones_has_only_the_ones_and_h():
    log, n = 10, 1 << 10
    witness = np.zeros((1000, 32), np.uint8)
    witness[:300, 0] = 1
    windows = choose_windows(BN254, n)
    work = proof_work(BN254, log, witness, 6000)
    assert work.additions == (windows.count * n + 3 * 300, 300)
    assert work.products == 3 * coset_work(log).products + 3 * n + 1800


def test_a_run_tells_what_it_left_out(run, capsys):
    assert run.may_begin("this")
    assert not run.may_begin("that", 1000)
    with run.within_memory("too large"):
        raise MemoryError
    assert run.tables["Left out"][1:] == [["that", "time"], ["too large", "memory"]]
    assert run.failures == []


@pytest.fixture
def one_run(monkeypatch):
    """Work that is done once instead of timed."""

    def once(work, *arguments, inner=1, runs=7):
        work(*arguments)
        return 2.0

    monkeypatch.setattr(gpu_times, "events_ms", once)


def cells_of(run, table):
    head, *rows = run.tables[table]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_transforms_show_both_ceilings_and_memory(run, one_run):
    run.figures |= FIGURES
    gpu_times.measure_transforms(run, [10])
    ours, theirs = cells_of(run, "Transforms")
    assert ours["split, of the copies' rate"] == percent(split_work(10).nbytes / 4e9 / 2)
    assert ours["split / floor"] != "-"
    assert theirs["split / floor"] == "-"  # not measured in FIGURES
    assert run.figures["transforms"][0]["held_mib"] * 2**20 >= (3 * 32 + 16) << 10


def test_transforms_without_memory_are_left_out(one_run):
    run = Run(Emulated(limit=1 << 16), 1000)
    gpu_times.measure_transforms(run, [10])
    assert "Transforms" not in run.tables
    assert [row["for want of"] for row in cells_of(run, "Left out")] == ["memory"] * 2


def test_long_vectors_are_made_of_short_ones(run, monkeypatch):
    monkeypatch.setattr(gpu_times, "_DIFFERENT_ROWS", 8)
    x = gpu_times._long_vectors(run, 5)
    assert x.shape == (3, 32, 32)
    assert np.array_equal(x.reshape(12, 8, 32), np.broadcast_to(x[0, :8], (12, 8, 32)))
    assert len(np.unique(x[0], axis=0)) == 8


def test_sparse_products_show_both_ceilings(run, one_run):
    run.figures |= FIGURES
    gpu_times.measure_matrices(run, [10])
    rows = cells_of(run, "Sparse products")
    assert len(rows) == 4
    nonzero = [row["share"] for row in run.figures["matrices"][:2]]
    assert nonzero[0] == pytest.approx(6 * 1024 / 60e6 / 2)
    assert 0.5 < nonzero[1] / nonzero[0] < 0.8
    assert rows[0]["of the copies' rate"] == percent(run.figures["matrices"][0]["copy_share"])
    # None with the witness of the one before beside its own
    assert len({row["held_mib"] for row in run.figures["matrices"]}) == 1


def test_large_proofs_wait_for_time_that_is_there():
    """A key of 2^24 rows takes 42 s to be made ready."""
    run = Run(Emulated(), 40)
    gpu_times.measure_proofs(run, [24], [])
    assert [row["what"] for row in cells_of(run, "Left out")] == [
        "proofs, cuda, BN254, 2^24",
        "proofs, cuda, BLS12-381, 2^24",
    ]


def test_proofs_of_the_cpu_have_no_share_of_the_gpu(run):
    gpu_times.measure_proofs(run, [], [5])
    rows = cells_of(run, "Proofs")
    assert [row["backend"] for row in rows] == ["cpu"] * 4
    assert {row["of the arithmetic's rate"] for row in rows} == {"-"}
    assert "Parts of the proofs, ms" not in run.tables
    assert all(proof["layers_ms"]["ntt"] > 0 for proof in run.figures["proofs"])


def test_parts_of_proofs_are_shown_once(run):
    """Two measurements of proofs, each with rows of its own."""
    layers = {"layers_ms": {"ntt": 1.0}}
    for number, log in enumerate((16, 24)):
        run.add("proofs", curve="bn128", log=log, witness="uniform", backend="cuda", **layers)
        gpu_times._parts_table(run, number)
    assert [row["N"] for row in cells_of(run, "Parts of the proofs, ms")] == ["2^16", "2^24"]


def test_the_work_of_a_stand_in(curve):
    key, witness = stand_in(curve, 10, "35/35/30")
    mixed = proof_work(curve, 10, witness.values, len(key.coefficients))
    key, witness = stand_in(curve, 10, "uniform")
    uniform = proof_work(curve, 10, witness.values, len(key.coefficients))
    assert mixed.additions[1] < 0.5 * uniform.additions[1]
    assert mixed.nbytes < uniform.nbytes


@pytest.fixture
def bench_with(monkeypatch, tmp_path):
    """bench_with(options): the bench on an emulated device; returns its exit code and tables."""
    monkeypatch.setattr(gpu, "Device", lambda **options: Emulated())
    monkeypatch.setattr(gpu, "describe_gpu", dict)
    monkeypatch.setattr(gpu, "gpu_line", lambda described: "A GPU.")
    page = tmp_path / "gpu.md"
    page.write_text("earlier")

    def main(*options, exit_codes=(0,) * 18):
        waiting = iter(exit_codes)
        process = SimpleNamespace(wait=lambda: next(waiting))
        monkeypatch.setattr(gpu.subprocess, "Popen", lambda command: process)
        monkeypatch.setattr(gpu.gpu_times, "measure_ceilings", lambda run: None)
        monkeypatch.setattr("sys.argv", ["bench.gpu", "--markdown", str(page), *options])
        return gpu.main(), page.read_text()

    return main


def test_a_part_that_there_is_not_costs_no_earlier_result(bench_with, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        bench_with("--only", "ceilings", "sums")
    assert ended.value.code == 2
    assert "no part is called sums" in capsys.readouterr().err
    assert (tmp_path / "gpu.md").read_text() == "earlier"


@pytest.mark.parametrize("failed", [0, 5])
def test_programs_that_do_not_compile_are_a_failure(bench_with, capsys, failed):
    codes = (1,) * failed + (0,) * (18 - failed)
    ended, page = bench_with("--only", "ceilings", exit_codes=codes)
    assert ended == (1 if failed else 0)
    assert page != "earlier"
    told = "RuntimeError: 5 of 18 programs could not be compiled" in capsys.readouterr().out
    assert told == bool(failed)


def test_a_missing_gpu_is_told_in_a_line(monkeypatch, capsys):
    def refuse(**options):
        raise UnavailableBackend("there is none")

    monkeypatch.setattr(gpu, "Device", refuse)
    monkeypatch.setattr("sys.argv", ["bench.gpu"])
    assert gpu.main() == 2
    assert capsys.readouterr().err == "gpu: there is none\n"
