"""An engine that was busy and is not any more is about as small as it was."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.behaviour.memory import engine_pid

_MIB = 1 << 20


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def use(_: int) -> None:
    with Sandbox() as sandbox:
        for _ in range(3):
            assert sandbox.run_code("print('x' * 5_000_000)", timeout=60).ok


@pytest.mark.deep("load")
def test_an_idle_engine_gives_back_what_it_needed_when_it_was_busy() -> None:
    use(0)
    pid = engine_pid()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(use, range(48)))
    busy = private_bytes(pid)
    end = time.monotonic() + 60
    while private_bytes(pid) > 60 * _MIB and time.monotonic() < end:
        time.sleep(0.5)
    assert private_bytes(pid) <= 60 * _MIB, f"{busy // _MIB} MiB after the load"
