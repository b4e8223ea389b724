"""What stays in device memory, and what goes first."""

import gc

import pytest

from prover.backends.cuda.resident import Resident


class Key:
    pass


@pytest.fixture
def made():
    return []


@pytest.fixture
def keep(made):
    """keep(resident, owner, name, nbytes, room), noting in `made` what had to be made."""

    def run(resident, owner, name, nbytes, room):
        found = resident.find(owner, name)
        if found is not None:
            return found
        return resident.keep(owner, name, nbytes, room, lambda: made.append(name) or name)

    return run


def test_a_part_is_made_once(keep, made):
    resident, key = Resident(), Key()
    assert [keep(resident, key, "A", 10, 100) for _ in range(3)] == ["A"] * 3
    assert made == ["A"]
    assert resident.nbytes == 10


def test_parts_of_one_owner_do_not_push_each_other_out(keep, made):
    resident, key = Resident(), Key()
    for _ in range(2):
        assert keep(resident, key, "A", 60, 100) == "A"
        assert keep(resident, key, "B", 60, 100) is None
        assert keep(resident, key, "C", 40, 100) == "C"
    assert made == ["A", "C"]


def test_the_owner_used_longest_ago_goes_first(keep, made):
    resident, keys = Resident(), [Key() for _ in range(3)]
    for key in keys:
        keep(resident, key, "A", 30, 100)
    keep(resident, keys[0], "A", 30, 100)
    keep(resident, keys[2], "B", 30, 100)
    assert [resident.find(key, "A") for key in keys] == ["A", None, "A"]
    assert resident.nbytes == 90


def test_nothing_goes_for_what_cannot_fit(keep):
    resident, keys = Resident(), [Key(), Key()]
    keep(resident, keys[0], "A", 30, 100)
    assert keep(resident, keys[1], "A", 101, 100) is None
    assert resident.find(keys[0], "A") == "A"


def test_parts_die_with_their_owner(keep):
    resident, key = Resident(), Key()
    keep(resident, key, "A", 30, 100)
    del key
    gc.collect()
    assert resident.nbytes == 0
    other = Key()
    assert keep(resident, other, "A", 100, 100) == "A"
    resident.shrink(0)
    assert resident.nbytes == 0


def test_what_could_not_be_made_is_not_kept():
    def fail():
        raise MemoryError

    resident, key = Resident(), Key()
    with pytest.raises(MemoryError):
        resident.keep(key, "A", 10, 100, fail)
    assert resident.find(key, "A") is None
    assert resident.nbytes == 0
