"""The command `ramet`, started as a person does."""

from __future__ import annotations

import os
import subprocess
import sys

WAIT_SECONDS = 60
COMMAND = (sys.executable, "-m", "ramet.cli.main")


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    """Ours, with a server or surely without one."""
    plain = {name: value for name, value in os.environ.items() if name not in ("RAMET_URL", "RAMET_API_KEY")}
    return plain | ({} if url is None else {"RAMET_URL": url}) | more


def ramet(*arguments: str, url: str | None = None, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env=environment(url, **more),
    )
