"""A key has a bounded number of hibernated sandboxes; another key's do not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ramet import LimitReached
from ramet.engine.cells.turns import Caller
from ramet.engine.sleeping.sleepers import Dormant, Sleepers


def test_a_key_that_has_too_many_on_disk_is_told_so() -> None:
    nothing: Any = None
    sleepers = Sleepers(nothing, nothing, nothing, server="s")
    sleepers.dormant = {f"sbx_{number}": Dormant(f"sbx_{number}", "me", {}) for number in range(1000)}
    mine: Any = SimpleNamespace(owner="me", sleep=SimpleNamespace(asleep=False))
    with pytest.raises(LimitReached, match="1000 of yours do already"):
        sleepers.hibernate(mine, Caller())
    sleepers.dormant["sbx_0"] = Dormant("sbx_0", "you", {})
    sleepers._check_count("me")
    sleepers._check_count("you")
