"""The keeper: one engine per state folder, reached over a socket, gone when it should be gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.doors.http.processes import keeper
from ramet.protocol import calls
from tests.lifetime.programs import Watch, groups_of, mounts
from tests.processes import command_line, descendants
from tests.server.engines import WAIT_SECONDS, KeeperProcess, ask, connect

StartKeeper = Callable[..., KeeperProcess]


@pytest.fixture
def start_keeper(tmp_path: Path) -> Iterator[StartKeeper]:
    started: list[KeeperProcess] = []

    def start(*options: str) -> KeeperProcess:
        started.append(KeeperProcess(tmp_path / "state", *options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def engine_of(keeper_pid: int) -> int:
    """The engine itself: the launcher stands between it and the keeper."""
    return next(pid for pid in descendants(keeper_pid) if b"ramet.engine" in command_line(pid))


def test_who_connects_speaks_with_the_engine_and_so_does_the_next(start_keeper: StartKeeper) -> None:
    one = start_keeper()
    assert json.loads(one.said) == {"ready": one.process.pid}
    with connect(one.state) as first, connect(one.state) as second:
        assert "cgroup_version" in ask(first, calls.FACTS, {}).header
        assert "cgroup_version" in ask(second, calls.FACTS, {}).header
        assert "cgroup_version" in ask(first, calls.FACTS, {}).header


def test_many_connections_at_once_are_all_passed_on(start_keeper: StartKeeper) -> None:
    one = start_keeper()
    connections = [connect(one.state) for _ in range(400)]
    for connection in connections:
        with connection:
            assert ask(connection, calls.FACTS, {}).kind == calls.ANSWER


def test_a_second_keeper_for_the_same_folder_says_that_it_is_busy(start_keeper: StartKeeper) -> None:
    one, second = start_keeper(), start_keeper()
    assert json.loads(second.said) == {"busy": True}
    assert second.process.wait(WAIT_SECONDS) == keeper.BUSY
    with connect(one.state) as connection:
        assert ask(connection, calls.FACTS, {}).kind == calls.ANSWER


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_but_files_is_left_of_a_keeper_that_ends_by(start_keeper: StartKeeper, number: int) -> None:
    mounted = mounts()
    one = start_keeper()
    pid = one.process.pid
    watch = Watch(descendants(pid))
    assert len(watch) > 2
    with connect(one.state) as connection:
        ask(connection, calls.FACTS, {})
        one.process.send_signal(number)
        assert connection.recv(1) == b""
    code = one.process.wait(WAIT_SECONDS)
    watch.wait_until_all_ended()
    assert groups_of(pid) == []
    assert mounts() <= mounted
    if number != signal.SIGKILL:
        assert code == keeper.STOPPED
        assert not (one.state / keeper.SOCKET_NAME).exists()


def test_a_keeper_that_was_killed_is_replaced_by_the_next(start_keeper: StartKeeper) -> None:
    one = start_keeper()
    one.process.kill()
    one.process.wait(WAIT_SECONDS)
    assert (one.state / keeper.SOCKET_NAME).exists()
    second = start_keeper()
    assert json.loads(second.said) == {"ready": second.process.pid}
    with connect(second.state) as connection:
        assert ask(connection, calls.FACTS, {}).kind == calls.ANSWER


@pytest.mark.parametrize("victim", ["engine", "launcher"])
def test_a_keeper_ends_with_its_engine_and_writes_down_what_it_knows(start_keeper: StartKeeper, victim: str) -> None:
    one = start_keeper()
    pid = one.process.pid
    watch = Watch(descendants(pid))
    launcher = next(child for child in descendants(pid) if b"ramet-pod\0launch" in command_line(child))
    with connect(one.state) as connection:
        ask(connection, calls.FACTS, {})
        os.kill(engine_of(pid) if victim == "engine" else launcher, signal.SIGKILL)
        assert connection.recv(1) == b""
    assert one.process.wait(WAIT_SECONDS) == keeper.ENGINE_ENDED
    watch.wait_until_all_ended()
    assert "ended with exit code" in one.log
    assert groups_of(pid) == []
    assert not (one.state / keeper.SOCKET_NAME).exists()


def test_an_engine_that_cannot_start_is_told_to_whoever_started_the_keeper(start_keeper: StartKeeper) -> None:
    one = start_keeper("--", "--no-such-option")
    said = json.loads(one.said)
    assert said["error"] == "engine_lost"
    assert "--no-such-option" in said["message"]
    assert one.process.wait(WAIT_SECONDS) == keeper.ENGINE_ENDED


_CLIENT = """
import socket, sys, time
connection = socket.socket(socket.AF_UNIX)
while connection.connect_ex(sys.argv[1]):
    time.sleep(0.01)  # until there is a keeper
print("here", flush=True)
sys.stdin.read()
"""


@pytest.mark.deep("restarts")
def test_a_keeper_stays_for_a_client_that_lives_and_ends_when_it_has_been_alone(
    start_keeper: StartKeeper, tmp_path: Path
) -> None:
    path = str(tmp_path / "state" / keeper.SOCKET_NAME)
    with subprocess.Popen(
        [sys.executable, "-c", _CLIENT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        one = start_keeper("--linger", "0.5")
        assert client.stdout is not None
        assert client.stdout.readline() == b"here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            one.process.wait(1.5)
    assert one.process.wait(WAIT_SECONDS) == keeper.STOPPED
    assert "nobody has been here" in one.log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_not_served_even_if_the_folder_lets_him_in(start_keeper: StartKeeper) -> None:
    one = start_keeper()
    path = one.state / keeper.SOCKET_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    ours, theirs = socket.socketpair()
    # The folder's parents are private, so the stranger gets a descriptor of the folder.
    folder = os.open(one.state, os.O_PATH)
    one.state.chmod(0o755)
    with ours, theirs:
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.settimeout(WAIT_SECONDS)
                    stranger.connect(f"/proc/self/fd/{folder}/{keeper.SOCKET_NAME}")
                    theirs.send(b"connected, then " + (stranger.recv(1) or b"closed"))
            except BaseException as error:
                theirs.send(repr(error).encode())
            finally:
                os._exit(0)
        ours.settimeout(WAIT_SECONDS)
        assert ours.recv(200) == b"connected, then closed"
        os.waitpid(child, 0)
    os.close(folder)
    with connect(one.state) as connection:
        assert ask(connection, calls.FACTS, {}).kind == calls.ANSWER
