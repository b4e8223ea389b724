"""Band-pass filters over a long signal and a large image, by FFT.

Plain NumPy, as such scripts are written: every step makes new arrays.
"""

import numpy as np

SAMPLES, SIDE, ROUNDS = 1 << 22, 2048, 4


def main() -> None:
    """Filter both and print the power that is left."""
    random = np.random.default_rng(2)
    power = 0.0
    for band in range(ROUNDS):
        signal = random.standard_normal(SAMPLES)
        window = signal * np.hanning(SAMPLES)
        spectrum = np.fft.rfft(window)
        frequency = np.fft.rfftfreq(SAMPLES)
        mask = (frequency > 0.05 * band) & (frequency < 0.05 * (band + 2))
        power += float(np.mean(np.fft.irfft(spectrum * mask) ** 2))

        image = random.standard_normal((SIDE, SIDE))
        plane = np.fft.fftshift(np.fft.fft2(image))
        radius = np.hypot(*np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j])
        ring = np.exp(-((radius - 0.2 * (band + 1)) ** 2) / 0.01)
        filtered = np.fft.ifft2(np.fft.ifftshift(plane * ring)).real
        power += float(np.mean(filtered**2))
    print(f"power {power:.9f}")


if __name__ == "__main__":
    main()
