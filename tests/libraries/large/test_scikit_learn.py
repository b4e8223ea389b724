"""scikit-learn at work, its threads included, while NumPy's arrays come from bigmem."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs, make_classification, make_regression
from sklearn.decomposition import NMF, PCA
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.manifold import TSNE
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

Check = Callable[[Callable[[], Any]], None]


@pytest.fixture(autouse=True)
def _sums_in_one_order() -> Iterator[None]:
    """Threads that share a sum round it one way today and another way tomorrow."""
    with threadpool_limits(1):
        yield


def classes() -> tuple[np.ndarray, np.ndarray]:
    points, labels = make_classification(1500, 20, n_informative=8, n_classes=3, random_state=7)
    return points, labels


def clusters() -> Any:
    points, _ = make_blobs(4000, 6, centers=5, random_state=7)
    found = KMeans(5, n_init=2, random_state=7).fit(points)
    return found.labels_, found.cluster_centers_, found.inertia_


def components() -> Any:
    points, _ = classes()
    reduced = PCA(5).fit_transform(points)
    factors = NMF(4, random_state=7, max_iter=500).fit_transform(np.abs(points))
    plane = TSNE(max_iter=250, random_state=7).fit_transform(reduced[:200])
    return reduced, factors, plane


def linear_models() -> Any:
    points, targets = make_regression(3000, 40, noise=3, random_state=7)
    model = make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge())
    sparse = Lasso(0.5).fit(points, targets)
    return model.fit(points, targets).predict(points), sparse.coef_


def classifiers() -> Any:
    points, labels = classes()
    logistic = LogisticRegression(max_iter=500).fit(points, labels)
    machine = SVC().fit(points, labels)
    near = KNeighborsClassifier(7, algorithm="kd_tree").fit(points, labels)
    return logistic.predict_proba(points), machine.decision_function(points), near.predict(points)


def trees_in_threads() -> Any:
    points, labels = classes()
    forest = RandomForestClassifier(20, n_jobs=2, random_state=7).fit(points, labels)
    boosted = HistGradientBoostingRegressor(max_iter=20, random_state=7).fit(points, labels)
    kept = pickle.loads(pickle.dumps(forest))
    return kept.predict_proba(points), boosted.predict(points)


def searches() -> Any:
    points, labels = classes()
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0, 10.0]}, cv=3)
    search.fit(points, labels)
    predicted = cross_val_predict(search.best_estimator_, points, labels, cv=3)
    return search.cv_results_["mean_test_score"], predicted


WORKLOADS = [clusters, components, linear_models, classifiers, trees_in_threads, searches]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_results_are_the_same(workload: Callable[[], Any], same_under_hook: Check) -> None:
    same_under_hook(workload)
