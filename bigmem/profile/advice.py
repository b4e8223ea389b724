"""From figures to advice.

Pure, like all that it calls: nothing looks at the machine, and nothing is advised about what was
not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from bigmem.profile.changes import Change, propose
from bigmem.profile.costs import Measured
from bigmem.profile.findings import find
from bigmem.profile.gpu import GpuReport
from bigmem.profile.machine import Machine
from bigmem.profile.policies import MEANS, Tax, Verdict, judge, pages_of_numpy, tax_of


@dataclass(frozen=True, slots=True)
class Advice:
    """All of it.

    Attributes
    ----------
    policy
        The policy that fits in the pages that NumPy's arrays have here; `None` if unmeasured.
    pages
        Which those are, ``"small"`` or ``"huge"``; `None` if unmeasured.
    verdicts
        One for each page regime that was measured.
    taxes
        Every policy in both regimes.
    findings
        Sentences on what was seen.
    changes
        What could be changed, and by which command.
    """

    policy: str | None
    pages: str | None
    verdicts: tuple[Verdict, ...]
    taxes: tuple[Tax, ...]
    findings: tuple[str, ...]
    changes: tuple[Change, ...]


def advise(machine: Machine, measured: Measured, gpu: GpuReport) -> Advice:
    """Judge the figures."""
    verdicts = tuple(
        judge(pages, costs, machine)
        for pages, costs in (("small", measured.small), ("huge", measured.huge))
        if costs is not None
    )
    pages = pages_of_numpy(machine, measured)
    own = next((each for each in verdicts if each.pages == pages), next(iter(verdicts), None))
    return Advice(
        policy=None if own is None else own.policy,
        pages=None if own is None else own.pages,
        verdicts=verdicts,
        taxes=tuple(
            Tax(policy, tax_of(policy, measured.small), tax_of(policy, measured.huge), means)
            for policy, means in MEANS.items()
        ),
        findings=tuple(find(machine, measured, gpu)),
        changes=tuple(propose(machine, measured, gpu)),
    )
