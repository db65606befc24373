"""Forks of sandboxes that fight back, taken and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ramet import ForkFailed, Sandbox, SandboxLost
from tests.fork.belongings import POOL, at_rest, wait_until_no_more_than
from tests.fork.relatives import TOOLS, run

Check = Callable[[], None]

# What is told apart from a sandbox that was lost and came back empty.
WITNESS = "witness = [41]\ndef answer(): return witness[0] + 1\n"


def forked_rightly(sandbox: Sandbox, n: int = 2, poisoned: bool = False) -> bool:
    """Forks; whether that worked. Children of a fork that worked are right: they answer, all of them.

    `poisoned`: the sandbox has rewritten its own code, and so a child may stumble over that and come back fresh.
    """
    try:
        children = sandbox.fork(n)
    except (ForkFailed, SandboxLost):
        return False
    try:
        for child in children:
            result = child.run_code("answer()", timeout=3 if poisoned else 30)
            if poisoned and not result.ok:
                result = child.run_code("6 * 7", timeout=30)
            assert result.value == "42", result
            assert poisoned or not result.restarted, result
    finally:
        for child in children:
            child.close()
    return True


def armed(attack: str) -> Sandbox:
    sandbox = Sandbox()
    run(sandbox, TOOLS + WITNESS)
    run(sandbox, attack)
    return sandbox


def assert_harms_nobody(attack: str, rounds: int, check: Check, disarm: str = "", poisoned: bool = False) -> int:
    """Forks an attacker again and again; how many forks worked. The neighbour answers all the time; nothing is left."""
    before = at_rest()
    worked = 0
    sandbox = armed(attack)
    for _ in range(rounds):
        if forked_rightly(sandbox, poisoned=poisoned):
            worked += 1
        elif poisoned:
            # The engine does not touch it again after it was caught: the next try needs a fresh attacker.
            sandbox.close()
            sandbox = armed(attack)
        check()
    if disarm:
        sandbox.run_code(disarm, timeout=3 if poisoned else 30)
    # The attacker may have lost itself, but not its sandbox.
    if not (last := sandbox.run_code("6 * 7", timeout=3 if poisoned else 30)).ok:
        last = sandbox.run_code("6 * 7", timeout=30)
    assert last.value == "42"
    sandbox.close()
    # Not one process more: a single task that got loose would be one.
    wait_until_no_more_than(before, replace(POOL, processes=0))
    return worked
