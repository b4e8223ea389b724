"""The contract suite that others import finds what is wrong with an allocator."""

import re
import subprocess
import sys

import pytest

Outcomes = dict[str, dict[str, set[str]]]

HEAD = """
import itertools
import bigmem, bigmem.testing, pytest
from bigmem.testing import AccountingContract, AllocatorContract, PoolContract

class Simple(bigmem.Allocator):
    def allocate(self, nbytes, *, alignment=64, zeroed=False):
        size = self.check_request(nbytes, alignment)
        memory = memoryview(bytearray(size + alignment))
        offset = -bigmem.Block(memory, allocator=self).address % alignment
        return bigmem.Block(memory[offset : offset + size], allocator=self)
"""
FIXTURE = """
    @pytest.fixture
    def allocator(self):
        with {made} as made:
            yield made
"""

# What is wrong, and the tests that must say so.
BROKEN = {
    "Unaligned": (
        """
class Broken(Simple):
    def allocate(self, nbytes, *, alignment=64, zeroed=False):
        return super().allocate(nbytes, alignment=1)
""",
        {"test_alignment", "test_senseless_alignment_is_refused"},
    ),
    "Dirty": (
        """
class Broken(Simple):
    def allocate(self, nbytes, *, alignment=64, zeroed=False):
        block = super().allocate(nbytes, alignment=alignment)
        memoryview(block)[:] = bytes([9]) * block.nbytes
        return block
""",
        {"test_zeroed_is_zero_on_every_path", "test_threads_side_by_side"},
    ),
    "OneForAll": (
        """
class Broken(Simple):
    memory = bytearray(200 << 20)
    def allocate(self, nbytes, *, alignment=64, zeroed=False):
        size = self.check_request(nbytes, alignment)
        return bigmem.Block(memoryview(self.memory)[:size], allocator=self)
""",
        {
            "test_blocks_do_not_overlap_and_keep_their_contents",
            "test_a_fenced_block_is_not_reused_before_its_fence",
        },
    ),
    "Credulous": (
        """
class Broken(Simple):
    def check_request(self, nbytes, alignment):
        return bigmem.sizes.parse_size(nbytes)
""",
        {
            "test_senseless_alignment_is_refused",
            "test_close_refuses_allocations_and_spares_live_blocks",
            "test_more_than_the_machine_has_is_out_of_memory",
        },
    ),
    "Keeping": (
        """
class Broken(Simple):
    def __init__(self):
        super().__init__()
        self.kept = []
    def allocate(self, nbytes, *, alignment=64, zeroed=False):
        self.kept.append(super().allocate(nbytes, alignment=alignment))
        return self.kept[-1]
""",
        {"test_an_array_keeps_its_block_and_its_last_view_ends_it"},
    ),
}


def program() -> str:
    """The suite over the simple allocator and over every broken one, each a class of tests."""
    parts = [HEAD, "class TestSimple(AllocatorContract):", FIXTURE.format(made="Simple()")]
    parts += ["class TestMute(AccountingContract, PoolContract):", FIXTURE.format(made="Simple()")]
    for what, (allocator, expected) in BROKEN.items():
        # The tests that must find it out, and those alone: some allocators take their time.
        parts += [allocator.replace("Broken", what), f"class Test{what}:"]
        parts += [f"    {name} = AllocatorContract.{name}\n" for name in sorted(expected)]
        parts.append(FIXTURE.format(made=f"{what}()"))
    return "\n".join(parts)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """By class, the tests that failed, and those that passed."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "test_mine.py").write_text(program())
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=line", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", "-c", "/dev/null", folder / "test_mine.py"],
        check=False,
        timeout=240,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found: Outcomes = {}
    lines = re.findall(r"^(FAILED|PASSED) .*::Test(\w+)::(\w+)", done.stdout, re.MULTILINE)
    for kind, what, test in lines:
        found.setdefault(what, {"FAILED": set(), "PASSED": set()})[kind].add(test)
    return found


def test_a_simple_allocator_passes(outcomes: Outcomes) -> None:
    assert not outcomes["Simple"]["FAILED"]
    assert len(outcomes["Simple"]["PASSED"]) == 19


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_allocator_is_found_out(outcomes: Outcomes, what: str) -> None:
    assert outcomes[what]["FAILED"] == BROKEN[what][1]


def test_one_that_counts_nothing_fails_the_accounts(outcomes: Outcomes) -> None:
    assert outcomes["Mute"]["FAILED"] == {
        "test_stats_count_what_happened",
        "test_flush_leaves_nothing_pending",
        "test_a_fenced_block_is_pending",
        "test_trim_gives_every_idle_byte_back",
    }


def test_without_pytest_it_says_what_is_missing() -> None:
    program = "import sys; sys.modules['pytest'] = None; import bigmem.testing"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line == "ImportError: bigmem.testing needs pytest, which is missing: pip install pytest"
