"""What each release policy would save a program: estimates from what was counted."""

from __future__ import annotations

from dataclasses import dataclass

from bigmem.profile.account import Account

# What the release of a block costs its caller under a policy that only hands it over.
_HAND_OVER_S = 2e-6


@dataclass(frozen=True, slots=True)
class Saving:
    """The tax under one policy; seconds.

    Attributes
    ----------
    policy
        Its name, as `bigmem.make` takes it.
    fault_s, free_s
        What faults and releases would cost.
    saved_s
        What of the tax would be gone; negative where the program would pay more.
    """

    policy: str
    fault_s: float
    free_s: float
    saved_s: float


def savings(found: Account) -> tuple[Saving, ...]:
    """Estimate the tax of a run, made on NumPy's allocator, under each policy.

    Time in allocating is taken to stay as it is. Under ``recycle`` blocks fault where memory in
    use goes beyond all before, and find warm pages elsewhere. Under the others each block faults
    anew: the C library reuses blocks of up to 32 MiB, so there they may pay more than now.
    """
    handed_over = found.calls * _HAND_OVER_S
    growth = found.fresh / found.bytes if found.bytes else 0.0
    arrays_s = found.fault_s - found.outside_fault_s
    estimates = {
        "recycle": (min(arrays_s, found.touch_s * growth), handed_over),
        "deferred": (found.touch_s, handed_over),
        "dontneed": (found.touch_s, found.dontneed_s),
        "mapped": (found.touch_s, found.unmap_s),
    }
    return tuple(
        Saving(
            policy,
            fault_s=found.outside_fault_s + fault_s,
            free_s=free_s,
            saved_s=arrays_s + found.free_s - fault_s - free_s,
        )
        for policy, (fault_s, free_s) in estimates.items()
    )
