"""A table of trades: derived columns, a sort, groups, a join.

Plain pandas, as such scripts are written: every step makes new columns.
"""

import numpy as np
import pandas as pd

ROWS, KEYS = 2_000_000, 5000


def main() -> None:
    """Build the table and print a summary of it."""
    random = np.random.default_rng(3)
    trades = pd.DataFrame(
        {
            "key": random.integers(0, KEYS, ROWS),
            "time": random.random(ROWS),
            "price": 100 + random.standard_normal(ROWS),
            "amount": random.integers(1, 1000, ROWS),
        }
    )
    trades["value"] = trades["price"] * trades["amount"]
    trades["excess"] = trades["price"] - trades.groupby("key")["price"].transform("mean")
    trades = trades.sort_values(["key", "time"]).reset_index(drop=True)
    trades["change"] = trades.groupby("key")["price"].diff().fillna(0.0)
    large = trades[trades["value"] > trades["value"].quantile(0.5)]
    totals = large.groupby("key").agg(value=("value", "sum"), worst=("change", "min"))
    joined = trades.merge(totals, left_on="key", right_index=True, suffixes=("", "_total"))
    share = joined["value"] / joined["value_total"]
    print(f"{len(joined)} rows, mean share {share.mean():.9f}, worst {joined['worst'].min():.6f}")


if __name__ == "__main__":
    main()
