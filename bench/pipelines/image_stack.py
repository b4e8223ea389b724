"""A stack of microscope-like frames: flat field, background, gradient, mask, projection.

Plain NumPy, as such scripts are written: every step makes new arrays.
"""

import numpy as np

FRAMES, SIDE = 24, 1536


def blur(image: np.ndarray, width: int) -> np.ndarray:
    """Mean over a square window, by cumulative sums."""
    padded = np.pad(image, width, mode="edge")
    for axis in (0, 1):
        sums = np.cumsum(padded, axis=axis, dtype=np.float64)
        padded = (np.roll(sums, -width, axis) - np.roll(sums, width, axis)) / (2 * width)
    return padded[width:-width, width:-width].astype(np.float32)


def main() -> None:
    """Process the stack and print what was found."""
    random = np.random.default_rng(1)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE
    flat = 1 - 0.3 * ((rows - 0.5) ** 2 + (columns - 0.5) ** 2)
    corrected = []
    for _ in range(FRAMES):
        raw = random.integers(90, 110, (SIDE, SIDE), dtype=np.uint16)
        frame = raw.astype(np.float32) / flat
        frame = frame - blur(frame, 15)
        frame = (frame - frame.mean()) / frame.std()
        corrected.append(frame)
    stack = np.stack(corrected)
    slopes = np.hypot(np.diff(stack, axis=1)[:, :, :-1], np.diff(stack, axis=2)[:, :-1, :])
    bright = np.where(slopes > 3, stack[:, :-1, :-1], 0)
    projection = bright.max(axis=0) - np.median(bright[::4], axis=0)
    print(f"{int((projection > 3).sum())} pixels, mean {projection.mean():.6f}")


if __name__ == "__main__":
    main()
