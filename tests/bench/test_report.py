"""What the demo says of its figures."""

from typing import Any

from bench import report


def row(allocator: str, wall: float, fault: float, **more: Any) -> dict[str, Any]:
    return {
        "regime": "huge",
        "allocator": allocator,
        "wall_s": wall,
        "map_s": 0.0,
        "fault_s": fault,
        "release_s": 0.0,
        **more,
    }


def test_faults_of_many_threads_are_no_larger_share_of_the_clock() -> None:
    proofs = [row("mapped", 1.6, 0.64, proofs=12), row("recycle", 1.6, 0.32, proofs=12)]
    results = {"machine": {"cores": 16}, "proofs": proofs}
    assert report.tax(proofs[0], 16)["fault"] == 0.04
    assert "at most 2.5% of the wall time" in report.verdict("proofs", results)


def test_faults_of_one_thread_are_its_own() -> None:
    arrays = [row("mapped", 4.0, 3.0), row("recycle", 1.0, 0.5)]
    sentence = report.verdict("arrays", {"machine": {"cores": 16}, "arrays": arrays})
    assert "up to 75% of the wall time" in sentence
    assert "recycle with huge pages takes 0.25 of mapped's time" in sentence
