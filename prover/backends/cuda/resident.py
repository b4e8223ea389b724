"""Which parts of proving keys stay in device memory from one proof to the next."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
Owner = object


class Resident(Generic[T]):
    """Parts that were made once, dropped when their owner dies or another owner needs the room.

    An owner's parts do not push each other out: they are used in turn in every proof, so that of a
    key too large for the room some parts stay, and the others are streamed every time.
    """

    def __init__(self) -> None:
        # Owners from the one used longest ago to the one used last
        self._owners: OrderedDict[int, None] = OrderedDict()
        self._parts: WeakKeyDictionary[Owner, _Parts[T]] = WeakKeyDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(parts.nbytes for parts in self._parts.values())

    def find(self, owner: Owner, name: str) -> T | None:
        """The part of a name, if it is there; ``owner`` is compared by identity."""
        parts = self._parts.get(owner)
        if parts is None:
            return None
        self._owners.move_to_end(id(owner))
        return parts.values.get(name)

    def keep(
        self, owner: Owner, name: str, nbytes: int, room: int, make: Callable[[], T]
    ) -> T | None:
        """Make a part and keep it, or return None if there is no room for it.

        Parameters
        ----------
        nbytes
            Of the part.
        room
            Bytes that all parts may take together. Other owners' parts go first, those of the
            owner used longest ago before the others.
        """
        parts = self._parts.setdefault(owner, _Parts())
        self._owners[id(owner)] = None
        self._owners.move_to_end(id(owner))
        if parts.nbytes + nbytes > room:
            return None
        self.shrink(room - nbytes, spared=owner)
        part = make()
        parts.values[name] = part
        parts.sizes[name] = nbytes
        return part

    def shrink(self, room: int, spared: Owner | None = None) -> None:
        """Drop owners' parts, all but those of ``spared``, until the rest takes ``room`` bytes."""
        by_id = {id(owner): owner for owner in self._parts}
        for number in list(self._owners):
            if self.nbytes <= room:
                return
            owner = by_id.get(number)
            if owner is None:  # it died
                del self._owners[number]
            elif owner is not spared:
                del self._owners[number], self._parts[owner]


class _Parts(Generic[T]):
    def __init__(self) -> None:
        self.values: dict[str, T] = {}
        self.sizes: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())
