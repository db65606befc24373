"""The command `ramet`, started as a person does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tests import nursery
from tests.lifetime.programs import Watch

WAIT_SECONDS = 60
# Variables that an interpreter reads when it starts.
_OF_INTERPRETERS = ("PYTHON", "LANG", "LC_")
COMMAND = (sys.executable, "-m", "ramet.cli.main")


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    """Ours, with a server or surely without one."""
    plain = {name: value for name, value in os.environ.items() if name not in ("RAMET_URL", "RAMET_API_KEY")}
    return plain | ({} if url is None else {"RAMET_URL": url}) | more


def ramet(*arguments: str, url: str | None = None, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Its whole life: what it is given, what it printed, how it ended."""
    chosen = environment(url, **more)
    if any(name.startswith(_OF_INTERPRETERS) for name in more):
        return subprocess.run(
            [*COMMAND, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
            env=chosen,
        )
    ends = [os.pipe() for _ in range(3)]
    theirs = (ends[0][0], ends[1][1], ends[2][1])
    pid = nursery.commands().start(arguments, chosen, [(end, number) for number, end in enumerate(theirs)])
    for end in theirs:
        os.close(end)
    with ThreadPoolExecutor(2) as threads:
        printed = [threads.submit(_read, end) for end in (ends[1][0], ends[2][0])]
        try:
            with suppress(BrokenPipeError), open(ends[0][1], "w", encoding="utf-8") as its_input:
                its_input.write(given)
            out, err = (text.result(WAIT_SECONDS) for text in printed)
            Watch([pid]).wait_until_all_ended()
        finally:
            os.kill(pid, signal.SIGKILL)  # changes nothing if it has ended: it is not reaped yet
            status = nursery.commands().status(pid)
    return subprocess.CompletedProcess([*COMMAND, *arguments], os.waitstatus_to_exitcode(status), out, err)


def _read(end: int) -> str:
    with open(end, encoding="utf-8") as pipe:
        return pipe.read()
