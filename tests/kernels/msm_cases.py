"""One multi-scalar multiplication by the device's kernels, wherever they run, and by the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from prover.backends.cpu import _cpu
from prover.backends.cuda import msm
from prover.curves import Curve


def on_device(
    kernels: Any,
    to_device: Callable[[np.ndarray], Any],
    curve: Curve,
    group: int,
    points: np.ndarray,
    scalars: np.ndarray,
) -> np.ndarray:
    """The sum, by kernels that start in workspaces full of rubbish."""

    def workspace(nbytes: int) -> Any:
        return to_device(np.full(nbytes, 0xA5, np.uint8))

    n = len(points)
    room = workspace(msm.sort_workspace(curve, n))
    digits = msm.sort_scalars(kernels, curve, to_device(scalars), room)
    space = workspace(msm.add_workspace(curve, group, n, kernels))
    tail_room = workspace(msm.tail_bytes(curve, group))
    tail = msm.add_points(kernels, curve, group, to_device(points), digits, space, tail_room)
    return msm.affine(curve, group, kernels.to_host(msm.combine(kernels, tail)))


def on_cpu(curve: Curve, group: int, points: np.ndarray, scalars: np.ndarray) -> np.ndarray:
    workspace = np.empty(_cpu.msm_workspace(curve.name, group, len(points), 1), np.uint8)
    return _cpu.msm(curve.name, group, points, scalars, workspace, 1).reshape(1, -1)
