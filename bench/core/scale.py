"""How much each figure does."""

from dataclasses import dataclass

from bench.machine import GIB, MIB


@dataclass(frozen=True)
class Scale:
    """Sizes in bytes, times in seconds.

    Attributes
    ----------
    calls
        Sizes whose release and allocation are timed, each with its number of repetitions.
    resized
        Size of a block that grows by half.
    result, steps
        Of the step loop: size of one result, and number of timed iterations.
    idle
        How long a program idles before what it still holds is read: the default decay and 2 s.
    mixed_steps
        Steps of the loop over mixed sizes.
    mixed_largest
        Largest array of that loop.
    reclaimed
        What goes back while others are watched.
    repeats
        How often that, and every other measurement of one call, is repeated.
    forked, exited
        What a process holds when it forks, and when it ends.
    cleared
        Sizes that are zeroed.
    prefaulted
        What is populated before it is filled.
    """

    calls: tuple[tuple[int, int], ...] = (
        (MIB, 300),
        (16 * MIB, 300),
        (256 * MIB, 20),
        (GIB, 6),
        (4 * GIB, 3),
        (16 * GIB, 1),
    )
    resized: int = GIB
    result: int = 512 * MIB
    steps: int = 15
    idle: float = 12.0
    mixed_steps: int = 100
    mixed_largest: int = 64 * MIB
    reclaimed: int = 4 * GIB
    repeats: int = 3
    forked: int = GIB
    exited: int = 2 * GIB
    cleared: tuple[int, ...] = (MIB, 16 * MIB, 256 * MIB)
    prefaulted: int = GIB

    def within(self, nbytes: int) -> "Scale":
        """The same with nothing above `nbytes` held at once."""
        calls: dict[int, int] = {}
        for size, count in self.calls:
            # The largest that fits stands for all that do not; in whole huge pages.
            calls.setdefault(min(size, nbytes // (2 * MIB) * (2 * MIB)), count)
        return Scale(
            **{
                **self.__dict__,
                "calls": tuple(calls.items()),
                "resized": min(self.resized, nbytes // 5 * 2),
                "result": min(self.result, nbytes // 4),
                "mixed_largest": min(self.mixed_largest, nbytes // 20),
                "reclaimed": min(self.reclaimed, nbytes * 2 // 3),
                "forked": min(self.forked, nbytes // 2),
                "exited": min(self.exited, nbytes),
                "prefaulted": min(self.prefaulted, nbytes),
            }
        )


FULL = Scale()
QUICK = Scale(
    calls=((MIB, 20), (8 * MIB, 3)),
    resized=32 * MIB,
    result=8 * MIB,
    steps=3,
    idle=0.2,
    mixed_steps=3,
    mixed_largest=4 * MIB,
    reclaimed=32 * MIB,
    repeats=1,
    forked=16 * MIB,
    exited=16 * MIB,
    cleared=(MIB, 4 * MIB),
    prefaulted=16 * MIB,
)
"""For tests: seconds, and figures that mean nothing."""
