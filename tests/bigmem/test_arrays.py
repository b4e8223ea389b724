"""The array constructors mean what NumPy's mean."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bigmem
from bigmem import registry

SHAPES = [(), (0,), 5, (3, 4), [2, 3, 4], (2, 0, 3), np.int64(7), (np.int32(2), 3)]
DTYPES = [None, "f8", "i4", np.uint8, bool, complex, "S5", "U3"]
DTYPES += ["M8[s]", "f4,i2", ("f4", (3,)), ">f4"]


@pytest.fixture(params=["system", "mapped", "dontneed", "deferred", "recycle"])
def allocator(request: pytest.FixtureRequest) -> bigmem.Allocator:
    return bigmem.make(request.param)


def same_layout(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    keys = ("shape", "dtype", "strides")
    flags = ("C_CONTIGUOUS", "F_CONTIGUOUS", "WRITEABLE", "ALIGNED")
    return all(getattr(got, k) == getattr(expected, k) for k in keys) and all(
        got.flags[f] == expected.flags[f] for f in flags
    )


@pytest.mark.parametrize(("shape", "dtype"), list(itertools.product(SHAPES, DTYPES)))
def test_like_numpy(shape: Any, dtype: Any) -> None:
    for order in ("C", "F"):
        empty = bigmem.empty(shape, dtype, order)
        assert same_layout(empty, np.empty(shape, dtype, order))
        for name in ("zeros", "ones"):
            got = getattr(bigmem, name)(shape, dtype, order)
            expected = getattr(np, name)(shape, dtype, order)
            assert same_layout(got, expected)
            assert got.tobytes() == expected.tobytes()


def test_full(allocator: bigmem.Allocator) -> None:
    for value in (3, 2.5, 1j, True, "abc", [1, 2, 3]):
        got = bigmem.full((2, 3), value, allocator=allocator)
        expected = np.full((2, 3), value)
        assert got.dtype == expected.dtype
        assert (got == expected).all()
    assert bigmem.full(4, 2.7, np.uint8, allocator=allocator).tolist() == [2] * 4


PROTOTYPES: list[Callable[[], Any]] = [
    lambda: np.arange(24.0).reshape(2, 3, 4),
    lambda: np.asfortranarray(np.ones((3, 4), "i2")),
    lambda: np.ones((4, 5, 6)).transpose(1, 2, 0),
    lambda: np.ones((4, 6))[::2, ::3],
    lambda: np.float32(3),
    lambda: [[1, 2], [3, 4]],
    lambda: np.empty((0, 3)),
]


@pytest.mark.parametrize("prototype", PROTOTYPES)
@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
def test_like(prototype: Callable[[], Any], order: Any) -> None:
    model = prototype()
    assert same_layout(bigmem.empty_like(model, order=order), np.empty_like(model, order=order))
    assert not bigmem.zeros_like(model, order=order).any()
    assert (bigmem.ones_like(model, order=order) == np.ones_like(model)).all()
    assert (bigmem.full_like(model, 7, order=order) == np.full_like(model, 7)).all()
    for dtype, shape in itertools.product(["i8", ("i2", (2,))], [None, (2, 9), (2, 3, 1)]):
        assert same_layout(
            bigmem.empty_like(model, dtype, order, shape=shape),
            np.empty_like(model, dtype, order, shape=shape),
        )


def test_subclasses_as_in_numpy() -> None:
    class Measured(np.ndarray[Any, Any]):
        unit = "none"

        def __array_finalize__(self, parent: Any) -> None:
            self.unit = getattr(parent, "unit", "none")

    model = np.ones((2, 3)).view(Measured)
    model.unit = "m"
    for like in (bigmem.zeros_like, np.zeros_like):
        assert type(like(model)) is Measured
        assert like(model).unit == "m"  # type: ignore[attr-defined]
        assert type(like(model, subok=False)) is np.ndarray


@pytest.mark.parametrize("dtype", [object, [("a", object)], np.dtypes.StringDType()])
def test_references_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="references"):
        bigmem.empty(3, dtype)


def test_wrong_arguments_fail_as_in_numpy() -> None:
    with pytest.raises(ValueError, match="negative"):
        bigmem.empty((3, -1))
    with pytest.raises(ValueError, match="order"):
        bigmem.empty(3, order="K")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bigmem.empty(2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bigmem.empty(3, "no such type")
    with pytest.raises(bigmem.OutOfMemory):
        bigmem.empty((1 << 40, 1 << 40))


def test_arrays_use_the_given_allocator_and_give_it_back(allocator: bigmem.Allocator) -> None:
    array = bigmem.zeros((1000, 1000), allocator=allocator)
    assert array.ctypes.data % 64 == 0
    assert allocator.stats().allocations == 1
    row = array[5]
    del array
    assert allocator.stats().releases == 0
    row += 1
    del row
    assert allocator.stats().releases == 1


def test_the_default_allocator_can_be_named_and_replaced(run_python: Callable[..., str]) -> None:
    program = """
        import bigmem
        print(bigmem.get_allocator().name)
        mine = bigmem.SystemAllocator(name="mine")
        before = bigmem.set_allocator(mine)
        bigmem.empty(100)
        print(before.name, bigmem.get_allocator().name, mine.stats().allocations)
        assert bigmem.set_allocator(None) is mine
        try:
            bigmem.set_allocator("recycle")
        except TypeError as error:
            print(error)
        """
    tail = "expected a bigmem.Allocator, not str"
    assert run_python(program).split("\n")[:3] == ["recycle", "recycle mine 1", tail]
    named = run_python(program, prefix="import os; os.environ['BIGMEM_ALLOCATOR'] = 'deferred'\n")
    assert named.split("\n")[:2] == ["deferred", "deferred mine 1"]


def test_a_default_that_is_set_while_another_is_made_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = bigmem.make("system")

    def make_late(name: str) -> bigmem.Allocator:
        bigmem.set_allocator(mine)  # as another thread may
        return bigmem.make(name)

    monkeypatch.setattr(registry, "make", make_late)
    before = bigmem.set_allocator(None)
    try:
        assert bigmem.get_allocator() is mine
    finally:
        bigmem.set_allocator(before)


def test_names_that_are_not_allocators() -> None:
    with pytest.raises(bigmem.BigmemError, match="known are deferred, dontneed, mapped, pinned"):
        bigmem.make("recycled")


def test_plug_ins_are_found(tmp_path: Any, run_python: Callable[..., str]) -> None:
    package = tmp_path / "plugged-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[bigmem.allocators]\nplugged = plugged:Plugged\nodd = plugged:odd\n"
    )
    (tmp_path / "plugged.py").write_text(
        "import bigmem\nclass Plugged(bigmem.SystemAllocator): pass\nodd = dict\n"
    )
    out = run_python(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import bigmem
        print(bigmem.make("plugged").name)
        try:
            bigmem.make("odd")
        except bigmem.BigmemError as error:
            print(error)
        """,
        str(tmp_path),
    )
    assert out.split("\n")[:2] == [
        "Plugged",
        "the plug-in plugged:odd of plugged made no bigmem.Allocator",
    ]


def test_process_wide_flush_trim_and_stats() -> None:
    one, two = bigmem.make("recycle"), bigmem.make("deferred")
    for allocator in (one, two):
        bigmem.ones(200_000, allocator=allocator)
    assert bigmem.flush(20) is True
    assert two.stats().pending == 0
    assert bigmem.stats().warm >= one.stats().warm > 0
    assert bigmem.trim() >= 1_600_000
    assert one.stats().warm == 0
