"""Numbers with units are read as people write them, and nothing else is."""

from __future__ import annotations

import argparse

import pytest

from ramet.cli.quantities import count_or_none, memory_mib, seconds


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("30d", 2592000), ("1w", 604800)]
)
def test_a_duration_has_a_unit(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "1e3d", "1000000w", "inf", "nan", "1 d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512M", 512), ("16G", 16384), ("1.5g", 1536), ("2GiB", 2048), ("1T", 1048576), ("3GB", 3072)],
)
def test_a_size_is_in_binary_units(text: str, expected: int) -> None:
    assert memory_mib(text) == expected


def test_a_share_is_of_this_machines_memory() -> None:
    whole = memory_mib("100%")
    assert whole > 64
    assert abs(memory_mib("50%") * 2 - whole) <= 1
    assert memory_mib("150%") > whole


@pytest.mark.parametrize("text", ["", "16", "16K", "-1G", "0M", "0%", "%", "1e3G", "99999999T", "G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be"):
        memory_mib(text)


def test_a_limit_is_a_number_or_the_word_none() -> None:
    assert (count_or_none("7"), count_or_none("0"), count_or_none("none")) == (7, 0, None)
    for text in ("", "-1", "1.5", "None", "\u0663", "9" * 13):
        with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
            count_or_none(text)
