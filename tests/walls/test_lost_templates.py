"""A template that the host's kernel killed, for want of memory say, is booted again when somebody needs it."""

from __future__ import annotations

import os
import signal

from ramet import Sandbox
from ramet.transport import embedded
from tests.walls.family import below, stat_fields


def _kill_what_is_frozen() -> None:
    """Templates and shadows: all that stands in a tracing stop below the engine."""
    for pid, _ in below(embedded.default_engine().pid):
        if stat_fields(pid)[:1] == ["t"]:
            os.kill(pid, signal.SIGKILL)


def test_sandboxes_are_made_after_their_template_was_killed(sandbox: Sandbox) -> None:
    _kill_what_is_frozen()
    for _ in range(5):  # the first few were thawed ahead
        with Sandbox() as another:
            assert another.run_code("6 * 7").value == "42"


def test_a_repl_is_started_again_after_its_template_was_killed(sandbox: Sandbox) -> None:
    _kill_what_is_frozen()
    assert sandbox.run_code("import os; os._exit(3)").state == "lost"
    result = sandbox.run_code("6 * 7")
    assert (result.value, result.restarted) == ("42", True)
