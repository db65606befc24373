"""Descriptors on their way through sockets are counted for all programs of a user, against the soft limit of whoever
sends next. Cells that have as many under way as they can cut off nobody.

Programs of the tests have the usual soft limit. As an ordinary user their sandboxes have the uid that they have.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from ramet import LimitReached, Sandbox
from ramet.client.drivers import blocking
from ramet.client.operations import sandboxes
from ramet.isolation.own_processes import engine_uids
from ramet.transport import embedded
from ramet.transport.embedded import EmbeddedEngine, default_engine
from tests.lifetime.programs import WAIT_SECONDS
from tests.processes import command_line, descendants, descriptor_count
from tests.server.running import Server

_USUAL_SOFT_LIMIT = 1024

# Sends descriptors to itself until the kernel refuses, in a cell.
FILL = """
import array, errno, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 253))]
pairs, answer = [], None
while answer is None:
    pairs.append(socket.socketpair())
    pairs[-1][0].setblocking(False)
    try:
        while True: pairs[-1][0].sendmsg([b'x'], rights)
    except BlockingIOError: pass
    except OSError as error: answer = errno.errorcode[error.errno]
answer
"""

# Any program of the user that passes a descriptor.
PASS_ONE = """
import os, socket
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b'x'], [0])
print(len(socket.recv_fds(theirs, 1, 1)[1]))
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    """A program with the usual soft limit."""
    command = ["/bin/bash", "-c", f'ulimit -Sn {_USUAL_SOFT_LIMIT}; exec "$0" -c "$1"', sys.executable]
    return subprocess.run(
        [*command, textwrap.dedent(code)], capture_output=True, text=True, timeout=3 * WAIT_SECONDS, check=False
    )


def test_cells_with_many_descriptors_under_way_cut_off_neither_the_owner_nor_other_programs(tmp_path: Path) -> None:
    done = _run(f"""
        import subprocess, sys, threading
        from ramet import Sandbox
        from ramet.transport.embedded import default_engine
        engine = default_engine()
        attackers = [Sandbox() for _ in range(3)]
        print([attacker.run_code({FILL!r}).value for attacker in attackers])
        # Connections beside the first.
        gate, answers = threading.Barrier(6), []
        def ask():
            gate.wait()
            with Sandbox() as another:
                answers.append(another.run_code("6 * 7").value)
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(answers)
        with Sandbox(mounts={{"/data": {str(tmp_path)!r}}}, memory_mib=300) as shown:
            print(shown.run_code("import os; os.path.isdir('/data')").value)
        print(subprocess.run([sys.executable, "-c", {PASS_ONE!r}], capture_output=True, text=True).stdout.strip())
        print(default_engine() is engine, attackers[0].run_code("6 * 7").value)
    """)
    assert done.stdout.splitlines() == [
        str(["'ETOOMANYREFS'"] * 3),
        str(["42"] * 6),
        "True",
        "1",
        "True 42",
    ], done


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Started with the usual soft limit."""
    one = Server(tmp_path, "--require-key")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_USUAL_SOFT_LIMIT, hard), hard))
    try:
        one.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield one
    one.stop()


@pytest.mark.deep("load")
def test_a_key_whose_cells_have_many_descriptors_under_way_cuts_off_no_other(server: Server) -> None:
    hostile, other = server.create_key("hostile"), server.create_key("other")
    with Sandbox(url=server.url, api_key=hostile) as attacker, Sandbox(url=server.url, api_key=other) as victim:
        assert attacker.run_code(FILL).value == "'ETOOMANYREFS'"
        with ThreadPoolExecutor(12) as threads:
            gate = threading.Barrier(12)

            def ask(_: int) -> str | None:
                gate.wait(WAIT_SECONDS)
                with Sandbox(url=server.url, api_key=other) as one:
                    return one.run_code("6 * 7").value

            assert list(threads.map(ask, range(12))) == ["42"] * 12
        assert victim.run_code("6 * 7").value == "42"


@pytest.mark.parametrize("number", [errno.ETOOMANYREFS, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EAGAIN])
def test_a_connection_that_cannot_be_made_is_a_limit_and_not_the_end_of_the_engine(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    engine = default_engine()

    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_idle", {True: [], False: []})
        patch.setattr(engine, "_way", None)
        patch.setattr(socket, "send_fds", refuse)
        with pytest.raises(LimitReached, match="cannot connect to the engine"):
            sandbox.info()
    assert sandbox.run_code("6 * 7").value == "42"
    assert default_engine() is engine


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("way", ["by the listener", "by a descriptor"])
def test_an_engine_without_descriptors_says_so_and_goes_on(way: str) -> None:
    engine = EmbeddedEngine(embedded.start_process)
    try:
        if way == "by a descriptor":
            assert engine._way is not None
            engine._way.close()
        _ask(engine)
        process = next(pid for pid in descendants(engine.pid) if b"ramet.engine" in command_line(pid))
        soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (descriptor_count(process), hard))
        for _ in range(4):
            with pytest.raises(LimitReached):
                _ask(engine)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
        assert engine.running
        _ask(engine)
    finally:
        engine.close()


def _ask(engine: EmbeddedEngine) -> None:
    """Over a new connection; the one before stays open, so that no descriptor becomes free."""
    idle, engine._idle[True] = engine._idle[True], []
    try:
        assert blocking.perform(engine, sandboxes.facts())
    finally:
        engine._idle[True] += idle


def uid_of(pid: int) -> int | None:
    """None: it has ended, as helpers of an engine do that make pods or write images."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


@pytest.mark.deep("restarts")
@pytest.mark.skipif(engine_uids.choices() is None, reason="only root may give engines uids of their own")
def test_engines_of_root_have_uids_of_their_own() -> None:
    code = """
        from ramet import Sandbox
        from ramet.transport.embedded import default_engine
        with Sandbox():
            print(default_engine().pid, flush=True)
            input()
    """
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    uids = []
    try:
        for program in programs:
            assert program.stdout is not None
            launcher = int(program.stdout.readline())
            inside = {uid_of(pid) for pid in descendants(launcher)} - {0, None}
            uids.append(inside)
    finally:
        for program in programs:
            program.communicate("\n", timeout=WAIT_SECONDS)
    assert [len(each) for each in uids] == [1, 1]
    assert not uids[0] & uids[1]
    among = engine_uids.choices()
    assert among is not None
    assert all(uid in among for each in uids for uid in each)
