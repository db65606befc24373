"""What somebody may reach at most is written in words, and of two bounds the less counts."""

from __future__ import annotations

import pytest

from ramet.doors.http.access.network_bounds import less, read_bound
from ramet.errors import InvalidArgument
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.specs import NetworkSpec, beyond


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], []),
        (["none"], []),
        (["open"], ["open"]),
        (["10.0.0.5:5432", "open"], ["open", "10.0.0.5:5432"]),
        (["API.example", "*.example:443", "api.example"], ["api.example", "*.example:443"]),
    ],
)
def test_a_bound_is_read_from_words_and_shown_in_them(words: list[str], shown: list[str]) -> None:
    bound = read_bound(words)
    assert rule_texts(bound) == shown
    assert read_bound(rule_texts(bound)) == bound


@pytest.mark.parametrize("words", [["none", "open"], ["none", "api.example"], ["*"], [""], ["http://a.example/"]])
def test_what_means_nothing_is_refused(words: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="network"):
        read_bound(words)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (["none"], ["open"], []),
        (["open"], ["open"], ["open"]),
        (["open"], ["api.example"], ["api.example"]),
        (["open"], ["10.0.0.5"], []),
        (["open", "10.0.0.0/8"], ["10.0.0.5"], ["10.0.0.5"]),
        (["open", "10.0.0.5"], ["open"], ["open"]),
        (["open"], ["open", "8.8.8.8", "0.0.0.0/0", "[::/0]", "168.63.129.16"], ["open"]),
        (["open"], ["0.0.0.0/0", "api.example"], ["api.example"]),
        (["*.example"], ["api.example", "api.other"], ["api.example"]),
        (["*.example"], ["*.deep.example"], ["*.deep.example"]),
        (["*.example"], ["example"], []),
        (["api.example"], ["api.example:443"], ["api.example:443"]),
        (["api.example:*"], ["api.example"], ["api.example"]),
        (["api.example:1-100"], ["api.example:50-200"], ["api.example:50-100"]),
        (["api.example:80"], ["api.example:443"], []),
        (["10.0.0.0/8:*"], ["10.1.0.0/16:22", "11.0.0.1"], ["10.1.0.0/16:22"]),
        (["10.0.0.1"], ["[2001:db8::1]"], []),
    ],
)
def test_the_less_of_two_is_what_both_allow(one: list[str], other: list[str], both: list[str]) -> None:
    for first, second in ((one, other), (other, one)):
        found = less(read_bound(first), read_bound(second))
        assert rule_texts(found) == both
        assert beyond(found, read_bound(first)) is None
        assert beyond(found, read_bound(second)) is None


def test_nothing_is_beyond_what_is_nothing() -> None:
    assert beyond(NetworkSpec(), less(read_bound(["none"]), read_bound(["open"]))) is None
