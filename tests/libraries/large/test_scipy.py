"""SciPy at work on NumPy's arrays while those come from bigmem."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy

Check = Callable[[Callable[[], Any]], None]


def random() -> np.random.Generator:
    return np.random.default_rng(7)


def transforms() -> Any:
    image = random().standard_normal((300, 400))
    spectrum = scipy.fft.fft2(image, workers=2)
    cosines = scipy.fft.dctn(image)
    return spectrum, scipy.fft.ifft2(spectrum, workers=2), cosines, scipy.fft.next_fast_len(1009)


def signals() -> Any:
    samples = random().standard_normal(40_000)
    window = scipy.signal.windows.hann(501)
    numerator, denominator = scipy.signal.butter(4, 0.2)
    return (
        scipy.signal.fftconvolve(samples, window),
        scipy.signal.filtfilt(numerator, denominator, samples),
        scipy.signal.resample_poly(samples, 3, 7),
        scipy.signal.stft(samples, nperseg=512),
    )


def images() -> Any:
    image = random().random((256, 300))
    labels, count = scipy.ndimage.label(image > 0.6)
    return (
        scipy.ndimage.gaussian_filter(image, 3),
        scipy.ndimage.median_filter(image, 5),
        scipy.ndimage.rotate(image, 30),
        labels,
        scipy.ndimage.center_of_mass(image, labels, range(1, count + 1)),
    )


def sparse_matrices() -> Any:
    matrix = scipy.sparse.random_array((2000, 2000), density=0.003, rng=random()).tocsr()
    system = (matrix + scipy.sparse.eye_array(2000) * 50).tocsc()
    right = random().random(2000)
    product = matrix @ matrix.T
    solution, code = scipy.sparse.linalg.cg(product + scipy.sparse.eye_array(2000), right)
    return product.toarray(), scipy.sparse.linalg.spsolve(system, right), solution, code


def dense_matrices() -> Any:
    matrix = random().standard_normal((200, 200))
    right = random().standard_normal((200, 3))
    return (
        scipy.linalg.lu(matrix),
        scipy.linalg.solve(matrix, right),
        scipy.linalg.svd(matrix),
        scipy.linalg.expm(matrix / 100),
    )


def neighbours() -> Any:
    points = random().random((5000, 3))
    tree = scipy.spatial.cKDTree(points)
    return tree.query(points, k=5), scipy.spatial.distance.cdist(points[:300], points[300:700])


def fits() -> Any:
    x = np.linspace(0, 10, 5000)
    y = np.exp(-x / 3) + random().normal(0, 0.01, x.size)
    fitted = scipy.optimize.curve_fit(lambda x, a, b: a * np.exp(-x / b), x, y, p0=(2, 2))
    spline = scipy.interpolate.CubicSpline(x, y)
    path = scipy.integrate.solve_ivp(lambda t, u: -u, (0, 5), np.ones(1000), rtol=1e-6)
    return fitted, spline(x[:-1] + 0.001), path.y


def files_and_statistics() -> Any:
    samples = random().normal(size=(4, 10_000))
    file = io.BytesIO()
    scipy.io.savemat(file, {"samples": samples}, do_compression=True)
    loaded = scipy.io.loadmat(io.BytesIO(file.getvalue()))["samples"]
    density = scipy.stats.gaussian_kde(loaded[0][:500])(np.linspace(-3, 3, 1000))
    return loaded, density, list(scipy.stats.ttest_ind(loaded[0], loaded[1]))


WORKLOADS = [
    transforms,
    signals,
    images,
    sparse_matrices,
    dense_matrices,
    neighbours,
    fits,
    files_and_statistics,
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_results_are_the_same(workload: Callable[[], Any], same_under_hook: Check) -> None:
    same_under_hook(workload)
