"""Random sequences of everything, compared with a model after each step. `make soak` runs more of them, for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.stateful import run_state_machine_as_test

from tests.fork.belongings import assert_leaves_nothing
from tests.fork.model import Sandboxes


@pytest.mark.deep("fuzz")
def test_sandboxes_are_as_their_models_after_every_step_and_leave_nothing(tmp_path: Path) -> None:
    set_hypothesis_home_dir(tmp_path)
    # The same steps in every run: a failure of this test is one that the change at hand has made.
    few = settings(
        derandomize=True,
        max_examples=20,
        stateful_step_count=30,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    assert_leaves_nothing(lambda: run_state_machine_as_test(Sandboxes, settings=few))
