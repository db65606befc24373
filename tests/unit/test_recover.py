"""A recovery that fails leaves the sandbox as it was: the next cell can try again."""

from __future__ import annotations

import pytest

from ramet.engine.making.recover import recover
from ramet.errors import SandboxLost


class ScriptedBody:
    def __init__(self) -> None:
        self.revived = 0
        self.closed = False

    async def revive(self) -> None:
        self.revived += 1

    async def close(self) -> None:
        self.closed = True


class ScriptedSandbox:
    def __init__(self, failing: str) -> None:
        self.body = ScriptedBody()
        self.failing = failing
        self.given_up = 0

    def start_repl_again(self) -> None:
        self._step("start")

    async def configure(self) -> None:
        self._step("configure")

    def give_up_repl(self) -> None:
        self.given_up += 1

    def _step(self, name: str) -> None:
        if name == self.failing:
            raise SandboxLost(name)


@pytest.mark.parametrize("failing", ["start", "configure"])
async def test_a_failed_recovery_keeps_the_body(failing: str) -> None:
    sandbox = ScriptedSandbox(failing)
    with pytest.raises(SandboxLost, match=failing):
        await recover(sandbox)  # type: ignore[arg-type]
    assert (sandbox.body.closed, sandbox.given_up) == (False, 1)
    sandbox.failing = ""
    await recover(sandbox)  # type: ignore[arg-type]
    assert (sandbox.body.revived, sandbox.given_up) == (2, 1)
