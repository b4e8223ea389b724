"""NumPy arrays on blocks: the constructors that NumPy has, with an allocator to choose."""

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .allocator import Allocator
from .registry import get_allocator

Shape = SupportsIndex | Sequence[SupportsIndex]
Order = Literal["C", "F"]
LikeOrder = Literal["C", "F", "A", "K"]
Array = np.ndarray[Any, Any]


def empty(
    shape: Shape,
    dtype: DTypeLike = float,
    order: Order = "C",
    *,
    allocator: Allocator | None = None,
) -> Array:
    """Array of arbitrary contents; as `numpy.empty`, on a block of `allocator`.

    Parameters
    ----------
    shape
        Length of each axis, or one integer for a vector.
    dtype
        Element type. Types that hold references (object, variable-width strings) are refused.
    order
        ``"C"`` or ``"F"``.
    allocator
        Where the memory comes from; the process default if `None`.

    Raises
    ------
    OutOfMemory
        The allocator has no memory to give.
    TypeError
        The type holds references.
    """
    return _new(shape, dtype, order, allocator, zeroed=False)


def zeros(
    shape: Shape,
    dtype: DTypeLike = float,
    order: Order = "C",
    *,
    allocator: Allocator | None = None,
) -> Array:
    """Array of zeros; as `numpy.zeros`. Fresh memory is zero already and is not touched."""
    return _new(shape, dtype, order, allocator, zeroed=True)


def ones(
    shape: Shape,
    dtype: DTypeLike = float,
    order: Order = "C",
    *,
    allocator: Allocator | None = None,
) -> Array:
    """Array of ones; as `numpy.ones`."""
    array = _new(shape, dtype, order, allocator, zeroed=False)
    np.copyto(array, 1, casting="unsafe")
    return array


def full(
    shape: Shape,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Order = "C",
    *,
    allocator: Allocator | None = None,
) -> Array:
    """Array filled with `fill_value`, whose type it takes if `dtype` is `None`; as `numpy.full`."""
    if dtype is None:
        dtype = np.asarray(fill_value).dtype
    array = _new(shape, dtype, order, allocator, zeroed=False)
    np.copyto(array, fill_value, casting="unsafe")
    return array


def empty_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: LikeOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    allocator: Allocator | None = None,
) -> Array:
    """Array of the prototype's shape, type and axis order; as `numpy.empty_like`."""
    return _like(prototype, dtype, order, subok, shape, allocator, zeroed=False)


def zeros_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    order: LikeOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    allocator: Allocator | None = None,
) -> Array:
    """Zeros of the shape and type of `a`; as `numpy.zeros_like`, see `empty_like`."""
    return _like(a, dtype, order, subok, shape, allocator, zeroed=True)


def ones_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    order: LikeOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    allocator: Allocator | None = None,
) -> Array:
    """Ones of the shape and type of `a`; as `numpy.ones_like`, see `empty_like`."""
    return full_like(a, 1, dtype, order, subok, shape, allocator=allocator)


def full_like(
    a: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    order: LikeOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    allocator: Allocator | None = None,
) -> Array:
    """`fill_value` in the shape and type of `a`; as `numpy.full_like`, see `empty_like`."""
    array = _like(a, dtype, order, subok, shape, allocator, zeroed=False)
    np.copyto(array, fill_value, casting="unsafe")
    return array


def _new(
    shape: Shape, dtype: DTypeLike, order: Order, allocator: Allocator | None, *, zeroed: bool
) -> Array:
    if order not in ("C", "F"):
        raise ValueError(f"order must be 'C' or 'F' (got {order!r})")
    # NumPy itself says what this type makes of an array: "S" gets a width, a subarray type axes.
    probe = np.empty((0,), dtype)
    resolved = probe.dtype
    if resolved.hasobject:
        raise TypeError(f"arrays of {resolved} hold references, which bigmem cannot")
    axes = (*_axes(shape), *probe.shape[1:])
    count = math.prod(axes)
    nbytes = count * resolved.itemsize
    if nbytes == 0:
        return np.empty(axes, resolved, order)
    chosen = allocator if allocator is not None else get_allocator()
    block = chosen.allocate(nbytes, alignment=max(64, resolved.alignment), zeroed=zeroed)
    # frombuffer, not ndarray(buffer=...): it keeps the export, so that the block knows its views.
    flat = np.frombuffer(memoryview(block), resolved, count)
    return flat.reshape(axes, order=order)


def _axes(shape: Shape) -> tuple[int, ...]:
    try:
        lengths = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        lengths = tuple(operator.index(length) for length in shape)  # type: ignore[union-attr,assignment]
    if any(length < 0 for length in lengths):
        raise ValueError("negative dimensions are not allowed")
    return lengths


def _like(
    prototype: ArrayLike,
    dtype: DTypeLike | None,
    order: str,
    subok: bool,
    shape: Shape | None,
    allocator: Allocator | None,
    *,
    zeroed: bool,
) -> Array:
    model = np.asanyarray(prototype)
    axes = model.shape if shape is None else _axes(shape)
    chosen_type: DTypeLike = model.dtype if dtype is None else dtype
    axis_order = _axis_order(model, order, len(axes))
    if isinstance(axis_order, str):
        array = _new(axes, chosen_type, axis_order, allocator, zeroed=zeroed)
    else:
        array = _new([axes[i] for i in axis_order], chosen_type, "C", allocator, zeroed=zeroed)
        # A subarray type adds axes of its own behind those that were asked for.
        extra = range(len(axes), array.ndim)
        array = array.transpose([*(axis_order.index(i) for i in range(len(axes))), *extra])
    if not subok or type(model) is np.ndarray:
        return array
    special = array.view(type(model))
    special.__array_finalize__(model)  # what the subclass carries over comes from the prototype
    return special


def _axis_order(model: Array, order: str, ndim: int) -> Order | list[int]:
    """How `order` wants the axes in memory: a plain order, or from the slowest to the fastest."""
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"order must be one of 'C', 'F', 'A' or 'K' (got {order!r})")
    if order == "K" and (ndim != model.ndim or model.flags.c_contiguous):
        return "C"
    if order == "F" or (order in "AK" and model.flags.fnc):
        return "F"
    if order == "K":
        return sorted(range(ndim), key=lambda axis: -abs(model.strides[axis]))
    return "C"
