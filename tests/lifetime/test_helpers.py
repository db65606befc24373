"""Any process of an engine may be killed, by the kernel for want of memory say: it is noticed, told, and made good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, and so with an engine of its own.
_PROGRAM = """
import os, signal, sys, time
from ramet import EngineLost, Sandbox
from ramet.transport import embedded
from tests.processes import children_of, command_line

def child_of(parent, word):
    return next(pid for pid in children_of(parent) if word in command_line(pid))

def victim(name):
    launcher = embedded.default_engine().pid
    if name == "launcher":
        return launcher
    engine = child_of(launcher, b"ramet.engine")
    return engine if name == "engine" else child_of(engine, name.encode())

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
"""
_LOST = """
sandbox, first = Sandbox(), embedded.default_engine()
sandbox.run_code("x = 41")
os.kill(victim(sys.argv[1]), signal.SIGKILL)

def is_lost():
    try:
        sandbox.run_code("x")
    except EngineLost as error:
        print("holder" in str(error))
        return True
    except Exception as error:  # in the moment before the engine has noticed
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return False

until(is_lost)
with Sandbox() as another:
    print(another.run_code("6 * 7").value, embedded.default_engine() is first)
"""
_PROXY = """
with Sandbox(network=["example.com"]) as sandbox:
    sandbox.run_code("x = 41")
    old = victim("ramet.network.proxy")
    os.kill(old, signal.SIGKILL)

    def there_is_another():
        try:
            return victim("ramet.network.proxy") != old
        except StopIteration:
            return False

    until(there_is_another)
    print(sandbox.run_code("x + 1").value)
    with Sandbox(network=["example.com"]) as another:
        print(another.run_code("6 * 7").value)
"""


def _run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM + program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("name", ["launcher", "engine", "holder"])
def test_what_sandboxes_cannot_do_without_is_replaced_with_the_engine(name: str) -> None:
    """Not an engine that stays and fails at everything: the next Sandbox() has another one. It says why it ended."""
    assert _run(_LOST, name) == f"{name == 'holder'}\n42 False\n"


@pytest.mark.deep("restarts")
def test_the_proxy_is_replaced_and_sandboxes_go_on() -> None:
    assert _run(_PROXY) == "42\n42\n"
