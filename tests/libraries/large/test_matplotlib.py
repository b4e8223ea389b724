"""matplotlib draws the same picture while NumPy's arrays come from bigmem."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def picture() -> Any:
    random = np.random.default_rng(7)
    figure = Figure(figsize=(8, 6))
    canvas = FigureCanvasAgg(figure)
    left, right, below, surface = figure.subplots(2, 2).ravel()
    left.imshow(random.random((200, 300)), cmap="viridis")
    right.plot(np.cumsum(random.normal(size=20_000)))
    below.hist(random.normal(size=20_000), bins=100)
    surface.contourf(np.add.outer(np.sin(np.arange(100) / 9), np.cos(np.arange(100) / 7)))
    canvas.draw()
    pixels = np.array(canvas.buffer_rgba())
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return pixels, file.getvalue()


def test_the_picture_is_the_same(same_under_hook: Callable[[Callable[[], Any]], None]) -> None:
    same_under_hook(picture)
