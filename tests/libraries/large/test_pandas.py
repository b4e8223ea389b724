"""pandas at work while NumPy's arrays, and so its columns, come from bigmem."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

Check = Callable[[Callable[[], Any]], None]
ROWS = 20_000


def frame() -> pd.DataFrame:
    random = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "when": pd.date_range("2024-01-01", periods=ROWS, freq="min"),
            "city": pd.Categorical.from_codes(random.integers(0, 5, ROWS), list("ABCDE")),
            "name": [f"n{k % 97}" for k in range(ROWS)],
            "count": random.integers(0, 1000, ROWS),
            "value": np.where(random.random(ROWS) < 0.1, np.nan, random.random(ROWS)),
        }
    )


def columns(table: pd.DataFrame) -> dict[str, Any]:
    """Each column's own array, or its texts."""
    flat = table.reset_index()
    return {
        str(name): values.to_numpy()
        if values.dtype.kind in "iufbM"
        else values.astype(str).tolist()
        for name, values in flat.items()
    }


def groups() -> Any:
    table = frame()
    grouped = table.groupby("city", observed=True)
    means = grouped[["count", "value"]].agg(["mean", "std", "max"])
    means.columns = ["-".join(pair) for pair in means.columns]
    return columns(means), grouped["value"].transform("median").to_numpy()


def joins() -> Any:
    left = frame()
    right = pd.DataFrame({"name": [f"n{k}" for k in range(97)], "rank": np.arange(97)[::-1]})
    merged = left.merge(right, on="name").sort_values(["rank", "count", "when"])
    stacked = pd.concat([merged, merged.iloc[::3]], ignore_index=True).drop_duplicates()
    return columns(stacked)


def time_series() -> Any:
    series = frame().set_index("when")[["count", "value"]]
    return (
        columns(series.resample("1h").mean()),
        columns(series.rolling("30min").sum()),
        columns(series.ewm(span=20).mean()),
        columns(series.interpolate().cumsum().shift(3)),
    )


def reshaping() -> Any:
    table = frame().assign(hour=lambda t: t["when"].dt.hour)
    pivot = table.pivot_table("value", "hour", "city", aggfunc="sum", observed=True)
    pivot.columns = list(pivot.columns)
    melted = table.melt("when", ["count", "value"], value_name="measured")
    wide = table[["count", "value"]].stack()
    return columns(pivot), columns(melted), wide.to_numpy()


def queries() -> Any:
    table = frame().fillna({"value": 0.5})
    table.loc[table["count"] > 900, "value"] *= 2
    table["ratio"] = table.eval("value / (count + 1)")
    chosen = table.query("ratio > 0.001 and city in ['A', 'C']")
    return columns(chosen), chosen["name"].str.upper().value_counts().sort_index().to_numpy()


def files() -> Any:
    table = frame()
    text = table.to_csv(index=False)
    parquet = io.BytesIO()
    table.to_parquet(parquet)
    return (
        text,
        columns(pd.read_csv(io.StringIO(text), parse_dates=["when"])),
        columns(pd.read_parquet(io.BytesIO(parquet.getvalue()))),
        columns(pickle.loads(pickle.dumps(table, protocol=5))),
    )


@pytest.mark.parametrize("workload", [groups, joins, time_series, reshaping, queries, files])
def test_results_are_the_same(workload: Callable[[], Any], same_under_hook: Check) -> None:
    same_under_hook(workload)
