"""What the pipeline is compared under: release policies, one an owner of memory, and page regimes.

The two owners are the backend, with its vectors and workspaces, and the assignments: witness, a, b
and c of each circuit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import bigmem
from bench import machine
from bench.core.contenders import GLIBC, JEMALLOC, MIMALLOC, Contender, NotInstalled

MODES = ("seed", "normal")
"""a, b, c made ahead on the host and handed over, as in the origin story; or made in the proof."""

BASELINE = "inline"

Kind = Literal["mapped", "dontneed", "detached", "recycle", "pinned", "system"]
Moment = Literal["return", "explicit", "early"]


@dataclass(frozen=True)
class Policy:
    """One way to own memory.

    Attributes
    ----------
    name, meaning
        What tables call it, and what it does.
    backend, assignments
        The allocators of the two owners, see `make_allocator`.
    moment
        When an assignment goes, see `prover.pipeline.engine.Release`.
    malloc, ask_for_huge
        For `SystemAllocator`, what to preload, and the variables that make it advise huge pages.
    ahead
        Whether the memory for as many assignments as there may be is pinned before the batch.
    """

    name: str
    meaning: str
    backend: Kind
    assignments: Kind
    moment: Moment = "return"
    ahead: bool = False
    malloc: Contender | None = None
    ask_for_huge: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, backend: str, libraries: Path | None) -> str | None:
        """Why it cannot run here, if so."""
        if self.assignments == "pinned" and backend != "cuda":
            return "needs a GPU"
        try:
            self.variables("huge", libraries)
        except NotInstalled as error:
            return str(error).replace("not installed", "not installed here")
        return None

    def variables(self, regime: str, libraries: Path | None) -> dict[str, str]:
        """The environment of its process in a page regime.

        Raises
        ------
        NotInstalled
        """
        variables = machine.regime_environment(regime)
        if self.malloc is not None:
            variables |= self.malloc.variables(libraries)
            if regime == "huge":
                variables |= self.ask_for_huge
        return variables


def _malloc(
    name: str, meaning: str, malloc: Contender, huge: Mapping[str, str], **environment: str
) -> Policy:
    """What a program gets that changes its malloc and nothing else."""
    malloc = replace(malloc, name=name, environment=environment)
    return Policy(name, meaning, "system", "system", malloc=malloc, ask_for_huge=huge)


_GLIBC_HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# What it was called up to 2.0, and since
_MIMALLOC_HUGE = {"MIMALLOC_LARGE_OS_PAGES": "1", "MIMALLOC_ALLOW_LARGE_OS_PAGES": "1"}
_KEEP_LARGE = "oversize_threshold:0"  # or blocks of 8 MiB and more go back at once

POLICIES = {
    policy.name: policy
    for policy in (
        Policy(BASELINE, "each vector has a mapping, unmapped on the spot as functions return",
               "mapped", "mapped"),
        Policy("explicit", "inline, but by hand, at the end of the proof and inside its timers",
               "mapped", "mapped", "explicit"),
        Policy("madvise", "an arena advises away, on the spot, what is dropped",
               "dontneed", "dontneed"),
        Policy("detached", "a thread in the background unmaps what is dropped",
               "detached", "detached"),
        Policy("detached-backend", "the backend detached, the assignments inline",
               "detached", "mapped"),
        Policy("detached-assignments", "the assignments detached, the backend inline",
               "mapped", "detached"),
        Policy("early", "detached, and a, b and c go as soon as the transforms have read them",
               "detached", "detached", "early"),
        Policy("recycle", "early, into arenas that keep pages warm",
               "recycle", "recycle", "early"),
        Policy("recycle+pinned", "recycle, with the assignments in pinned memory",
               "recycle", "pinned", "early"),
        Policy("pinned ahead", "recycle+pinned, in memory that was pinned before the batch, as a "
               "process that stays has it", "recycle", "pinned", "early", ahead=True),
        _malloc("glibc", "malloc and free of glibc", GLIBC, _GLIBC_HUGE),
        _malloc("jemalloc", "malloc and free of jemalloc", JEMALLOC, {"MALLOC_CONF": "thp:always"}),
        _malloc("mimalloc", "malloc and free of mimalloc", MIMALLOC, _MIMALLOC_HUGE),
        # Heaps of other arenas than the first are too small for large blocks: those are mapped.
        _malloc("glibc tuned", "glibc, told to keep all that is freed: in one arena, with nothing "
                "mapped by itself", GLIBC, _GLIBC_HUGE, MALLOC_ARENA_MAX="1", MALLOC_MMAP_MAX_="0",
                MALLOC_TRIM_THRESHOLD_=str(1 << 40)),
        _malloc("jemalloc tuned", "jemalloc, told to keep large blocks, too, for ten seconds",
                JEMALLOC, {"MALLOC_CONF": f"{_KEEP_LARGE},thp:always"}, MALLOC_CONF=_KEEP_LARGE),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One thing to measure: a size, a mode, a policy and a page regime."""

    log2: int
    mode: str
    regime: str
    policy: str

    @property
    def baseline(self) -> Cell:
        """What it is compared with."""
        return replace(self, policy=BASELINE)


def make_allocator(
    kind: Kind, regime: str, reclaim: bigmem.ReclaimPool | None = None
) -> bigmem.Allocator:
    """An allocator of one owner, in a process that was started for the regime."""
    pages = bigmem.AnonymousPages(huge="never" if regime == "4 KiB" else "auto")
    match kind:
        case "system":
            return bigmem.SystemAllocator()
        case "mapped":
            return bigmem.MappedAllocator(pages=pages, reclaim=reclaim)
        case "detached":
            return bigmem.MappedAllocator(pages=pages, release=bigmem.Deferred(), reclaim=reclaim)
        case "dontneed":
            return bigmem.ArenaAllocator(pages=pages, release=bigmem.Inline(), reclaim=reclaim)
        case "recycle":
            return bigmem.ArenaAllocator(pages=pages, reclaim=reclaim)
        case "pinned":
            from bigmem.cuda import PinnedAllocator

            return PinnedAllocator(reclaim=reclaim)


def circuits_of(count: int, log2: int) -> str:
    """How many circuits of which size, in words."""
    return f"{count} circuit{'' if count == 1 else 's'} of 2^{log2}"
