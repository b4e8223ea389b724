"""What is told of a long compilation, and when."""

import threading
import time

import pytest

from prover.backends.cuda.announce import announced


@pytest.fixture
def lines():
    return []


def test_what_is_quick_is_not_told(lines):
    with announced("kernels", lines.append, patience_s=60):
        pass
    assert lines == []


def test_what_lasts_is_told_before_and_after(lines):
    with announced("kernels for BN254", lines.append, patience_s=0.01):
        deadline = time.monotonic() + 60
        while not lines and time.monotonic() < deadline:
            time.sleep(0.01)
        before = list(lines)
    assert before == ["compiling kernels for BN254; once for this machine, CuPy keeps the result"]
    assert len(lines) == 2
    assert lines[1].startswith("compiled kernels for BN254 in ")
    assert float(lines[1].split()[-2]) >= 0


def test_a_failure_is_not_called_compiled(lines):
    with pytest.raises(RuntimeError), announced("kernels", lines.append, patience_s=0):
        raise RuntimeError
    assert not any(line.startswith("compiled") for line in lines)


def test_without_a_thread_only_the_end_is_told(lines, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with announced("kernels", lines.append, patience_s=0):
        pass
    (line,) = lines
    assert line.startswith("compiled kernels in ")


def test_nobody_need_listen():
    with announced("kernels", None, patience_s=0):
        pass
