"""Sums tokens over all samples of one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_DELTAS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens_details",
    "server_tool_use",
)
_NO_SEARCHES = {"web_search_requests": 0, "web_fetch_requests": 0}


class UsageSum:
    """The cost of an answer so far. An upstream counts each sample from zero."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._sample: dict[str, Any] = {}

    def update(self, usage: object) -> None:
        """Set numbers of the current sample; later numbers replace earlier ones."""
        if isinstance(usage, dict):
            self._sample.update({name: value for name, value in usage.items() if value is not None})

    def end_sample(self) -> dict[str, Any]:
        """End the sample, and return its numbers."""
        sample, self._sample = self._sample, {}
        self._before = _sum(self._before, sample)
        return sample

    def drop_sample(self) -> None:
        self._sample = {}

    def total(self, *, with_searches: bool) -> dict[str, Any]:
        total = _sum(self._before, self._sample)
        numbers = {"input_tokens": 0, "output_tokens": 0, **total}
        if with_searches:
            searches = numbers.get("server_tool_use")
            numbers["server_tool_use"] = _sum(_NO_SEARCHES, searches if isinstance(searches, dict) else {})
        return numbers

    def total_for_delta(self, *, with_searches: bool) -> dict[str, Any]:
        total = self.total(with_searches=with_searches)
        return {name: total[name] for name in _OF_DELTAS if name in total}


def _sum(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(first)
    for name, value in second.items():
        before = result.get(name)
        if isinstance(value, dict):
            result[name] = _sum(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list):
            result[name] = [*(before if isinstance(before, list) else ()), *value]
        elif _is_number(value) and _is_number(before):
            result[name] = before + value
        else:
            result[name] = value
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
