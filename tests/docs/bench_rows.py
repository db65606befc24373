"""The rows that `make bench` prints, without their figures: the scenarios run, but measure and start nothing."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from bench import crowd, forks, gateway, images, many_users, network_scenarios, ours, packages, server
from bench.measure import Contestant, Samples
from bench.scenarios import SCENARIOS
from bench.settings import Settings
from bench.table import Row

_FIGURE = 1.0


def rows_of(scenario: str) -> list[Row]:
    """The rows of a scenario, each with a figure that means nothing."""
    with pytest.MonkeyPatch.context() as patch:
        _measure_nothing(patch)
        return SCENARIOS[scenario](Settings(quick=False, shuffle=random.Random(0)))


def _measure_nothing(patch: pytest.MonkeyPatch) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("bench.") and name != "bench.measure" and hasattr(module, "measure"):
            patch.setattr(module, "measure", _measured)
    places = SimpleNamespace(gateway="http://nowhere", proxy="http://nowhere")
    patch.setattr(server, "running", lambda: nullcontext("http://nowhere"))
    patch.setattr(gateway, "running", lambda: nullcontext(places))
    for user in (network_scenarios, packages):
        patch.setattr(user, "announcing_program", lambda _: nullcontext("http://nowhere"))
    patch.setattr(ours, "modules_of_a_sandbox", list)
    patch.setattr(crowd, "memory_of_each", _seen)
    patch.setattr(crowd, "create_among", lambda counts, *_: dict.fromkeys(counts, _FIGURE))
    patch.setattr(forks, "memory_of_children", _seen)
    patch.setattr(forks, "files_of_children", _seen)
    patch.setattr(images.Store, "run", lambda *_: defaultdict(lambda: _FIGURE))
    patch.setattr(many_users, "mixed_load", _seen)
    patch.setattr(gateway, "conversations", _seen)


def _measured(contestants: Sequence[Contestant], *_: object, **__: object) -> dict[str, Samples]:
    return {contestant.name: Samples((_FIGURE,)) for contestant in contestants}


def _seen(*_: object) -> SimpleNamespace:
    """Every field that a scenario without contestants reads from what it measured."""
    bytes_and_seconds = ("median_bytes", "largest_bytes", "told_bytes", "grown_bytes", "seconds")
    fields = dict.fromkeys((*bytes_and_seconds, "memory_at_end", "memory_early"), _FIGURE)
    return SimpleNamespace(**fields, calls=0, errors=[], percentile=lambda _: _FIGURE)
