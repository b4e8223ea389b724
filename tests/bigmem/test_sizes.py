"""Sizes as people write them."""

import pytest

import bigmem
from bigmem.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("64MiB", 64 << 20),
        ("1.5 GB", 1_500_000_000),
        (" 0.5kib ", 512),
        ("7", 7),
        ("9" * 400, 10**400 - 1),
        ("1." + "0" * 5000, 1),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["9" * 400 + ".5", "9" * 400 + ".5GiB", "9" * 5000])
def test_numbers_with_too_many_digits_are_one_line(text: str) -> None:
    with pytest.raises(bigmem.BigmemError, match=r"^'9{20}'\.\.\. is no size: .* digits$") as error:
        parse_size(text)
    assert len(str(error.value)) < 100
