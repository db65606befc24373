"""`ramet serve` as a family of processes: who is left when one of them is killed, and what survives."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.doors.http.processes import keeper
from ramet.protocol import calls, fields
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.transport.builds import build
from ramet.transport.resolving import resolve
from tests.lifetime.programs import Watch, groups_of, mounts
from tests.processes import children_of, command_line, descendants
from tests.server.asking import Caller
from tests.server.engines import WAIT_SECONDS, ask, connect, wait_until
from tests.server.running import Server, worker_pid


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Not started yet. Whatever the test did, neither server nor keeper is left."""
    one = Server(tmp_path, "--grace", "5", "--linger", "60")
    yield one
    if one.running:
        one.stop()
    if keeper_pid(one):
        os.kill(keeper_pid(one), signal.SIGTERM)
        wait_until(lambda: keeper_pid(one) == 0, "the keeper ends")


def keeper_pid(server: Server) -> int:
    """0: none runs."""
    try:
        told = (server.state / keeper.PID_NAME).read_text().partition(" ")[0]
    except FileNotFoundError:
        return 0
    return int(told) if told and b"ramet.doors.http.processes.keeper" in command_line(int(told)) else 0


def engine_pid(server: Server) -> int:
    return next(pid for pid in descendants(keeper_pid(server)) if b"ramet.engine" in command_line(pid))


def victim_pid(server: Server, name: str) -> int:
    """Of one of the processes without which there are no sandboxes."""
    if name == "keeper":
        return keeper_pid(server)
    if name == "engine":
        return child_of(child_of(keeper_pid(server), b"launch"), b"ramet.engine")
    if name == "holder":
        return child_of(victim_pid(server, "engine"), b"holder")
    return child_of(keeper_pid(server), b"launch")


def child_of(parent: int, word: bytes) -> int:
    return next(pid for pid in children_of(parent) if word in command_line(pid))


def answers(server: Server) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_SECONDS)
    try:
        connection.request("GET", "/v1/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def engine_answers(server: Server) -> bool:
    try:
        with connect(server.state) as connection:
            return ask(connection, calls.FACTS, {}).kind == calls.ANSWER
    except (OSError, EOFError):
        return False


def make_sandbox(server: Server) -> str:
    """One that remembers something."""
    with connect(server.state) as connection:
        made = ask(connection, calls.CREATE, resolve(SandboxOptions()).header())
        sandbox_id = fields.text(made.header, "id")
        assert run(server, sandbox_id, "x = 41") == ""
    return sandbox_id


def make_sandbox_over_http(server: Server) -> str:
    """The engine then has no client but the server: the test itself would be one that lives on."""
    made = Caller(server.url).ask("POST", "/v1/sandboxes", {})
    assert made.status == 201, made.body
    return str(made.json["id"])


def run(server: Server, sandbox_id: str, code: str) -> str:
    header = {"sandbox": sandbox_id, "language": "python", "timeout": 30, "stream": False}
    with connect(server.state) as connection:
        return calls.read_result(ask(connection, calls.RUN, header, code.encode())).stdout


@pytest.mark.deep("restarts")
def test_after_kill_of_the_supervisor_the_worker_is_gone_and_the_sandboxes_are_there(server: Server) -> None:
    server.start()
    sandbox_id = make_sandbox(server)
    before = keeper_pid(server)
    worker = Watch([worker_pid(server)])
    server.kill()
    worker.wait_until_all_ended()
    assert keeper_pid(server) == before
    assert run(server, sandbox_id, "print(x + 1)") == "42\n"
    server.start(server.port)  # the port is free
    assert keeper_pid(server) == before
    assert answers(server)
    assert run(server, sandbox_id, "print(x + 1)") == "42\n"


@pytest.mark.deep("restarts")
def test_with_no_time_to_linger_the_server_starts_and_sandboxes_end_when_it_is_killed(tmp_path: Path) -> None:
    server = Server(tmp_path, "--linger", "0")
    server.start()
    make_sandbox_over_http(server)
    family = Watch(descendants(keeper_pid(server)))
    server.kill()
    family.wait_until_all_ended()
    wait_until(lambda: keeper_pid(server) == 0, "the keeper ends")
    assert not server.running


# A server that has left its own group to others, as it does under a systemd that puts it into that group.
_IN_A_GROUP_BELOW = """
import sys
from ramet.cli.main import main
from ramet.isolation.kernel import cgroups
cgroups.step_aside = lambda: True
sys.exit(main())
"""


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("started_by", ["systemd", "a person"])
def test_sandboxes_end_with_a_killed_server_only_where_systemd_could_start_no_other_beside_them(
    server: Server, started_by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """systemd starts a server in a group that holds nobody else; engines of the last one keep it from doing so."""
    if started_by == "systemd":
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    server.start(command=(sys.executable, "-c", _IN_A_GROUP_BELOW))
    sandbox_id = make_sandbox_over_http(server)
    family = Watch(descendants(keeper_pid(server)))
    server.kill()
    if started_by == "systemd":
        family.wait_until_all_ended()
        wait_until(lambda: keeper_pid(server) == 0, "the keeper ends")
        assert "sandboxes end with this server" in server.log.read_text()
    else:
        assert run(server, sandbox_id, "print(6 * 7)") == "42\n"


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("victim", ["worker", "introducer"])
def test_a_worker_that_is_killed_is_replaced_and_nobody_is_turned_away(server: Server, victim: str) -> None:
    server.start()
    sandbox_id = make_sandbox(server)
    old, before = worker_pid(server), keeper_pid(server)
    # A worker without its introducer reaches no engine, so it ends.
    os.kill(old if victim == "worker" else children_of(old)[0], signal.SIGKILL)
    # Connects while there is no worker: the listening socket is the supervisor's.
    wait_until(lambda: worker_pid(server) not in (0, old) and answers(server), "another worker answers")
    assert keeper_pid(server) == before
    assert run(server, sandbox_id, "print(x + 1)") == "42\n"
    assert "worker ended" in server.log.read_text()


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("victim", ["keeper", "launcher", "engine", "holder"])
def test_a_lost_engine_leaves_no_process_and_is_replaced_while_the_server_goes_on(server: Server, victim: str) -> None:
    server.start()
    make_sandbox(server)
    old, worker, supervisor = keeper_pid(server), worker_pid(server), server.process.pid
    watch = Watch([old, *descendants(old)])
    assert len(watch) > 5
    os.kill(victim_pid(server, victim), signal.SIGKILL)
    watch.wait_until_all_ended()
    wait_until(lambda: keeper_pid(server) not in (0, old) and engine_answers(server), "another engine stands")
    wait_until(lambda: answers(server), "the health check is good again")
    assert (worker_pid(server), server.process.pid) == (worker, supervisor)
    assert groups_of(old) == []
    assert run(server, make_sandbox(server), "print(x)") == "41\n"


def test_a_graceful_stop_leaves_no_process_mount_group_or_socket(server: Server) -> None:
    mounted = mounts()
    server.start()
    make_sandbox(server)
    pid = keeper_pid(server)
    watch = Watch(descendants(server.process.pid))
    assert len(watch) > 6
    assert server.stop() == 0
    watch.wait_until_all_ended()
    assert groups_of(pid) == []
    assert mounts() <= mounted
    left = {path.name for path in server.state.iterdir()}
    assert left <= {"engine.log", "keeper.pid", "serve.pid", "ramet.db", "ramet.secret"}


@pytest.mark.deep("restarts")
def test_a_graceful_stop_also_ends_an_engine_that_another_server_had_started(server: Server) -> None:
    server.start()
    server.kill()
    server.start()
    watch = Watch([keeper_pid(server), *descendants(keeper_pid(server))])
    assert server.stop() == 0
    watch.wait_until_all_ended()


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_of_a_server_that_is_stopped_while_it_starts(server: Server, number: int) -> None:
    with start_without_waiting(server) as process:
        wait_until(lambda: keeper_pid(server) != 0, "the keeper starts")
        watch = Watch(descendants(process.pid))
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 0
    watch.wait_until_all_ended()
    assert keeper_pid(server) == 0


@pytest.mark.deep("restarts")
def test_a_server_that_is_killed_while_it_starts_is_followed_by_one_that_starts(server: Server) -> None:
    with start_without_waiting(server) as process:
        wait_until(lambda: keeper_pid(server) != 0, "the keeper starts")
        process.kill()
    server.start()
    assert answers(server)
    assert run(server, make_sandbox(server), "print(x)") == "41\n"


@pytest.mark.deep("restarts")
def test_a_second_server_for_the_same_folder_refuses_and_the_first_goes_on(server: Server) -> None:
    server.start()
    done = serve("--port", "0", "--state", str(server.state))
    assert done.returncode == 1
    assert f"another server (process {server.process.pid}) already uses the state folder {server.state}" in done.stderr
    assert "hint: stop that one first" in done.stderr
    assert answers(server)


@pytest.mark.deep("restarts")
def test_a_port_that_is_in_use_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve("--port", str(port), "--state", str(tmp_path / "state"))
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in done.stderr
    assert "--port 0" in done.stderr
    assert not (tmp_path / "state" / keeper.PID_NAME).exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_can_reach_is_refused_without_a_key(tmp_path: Path, host: str) -> None:
    done = serve("--host", host, "--port", "0", "--state", str(tmp_path / "state"))
    assert done.returncode == 1
    assert "there is no key" in done.stderr
    assert "hint: make one first: ramet keys create --name NAME" in done.stderr


@pytest.mark.deep("restarts")
def test_an_address_that_others_can_reach_is_served_with_a_key(tmp_path: Path) -> None:
    server = Server(tmp_path, "--host", "0.0.0.0")
    server.create_key("laptop")
    server.start()
    try:
        assert server.url.startswith("http://0.0.0.0:")
        assert answers(server)
    finally:
        assert server.stop() == 0


def test_a_folder_whose_path_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    done = serve("--port", "0", "--state", str(tmp_path / ("long" * 30)))
    assert done.returncode == 1
    assert "a unix socket in it allows 95" in done.stderr


@pytest.mark.deep("restarts")
def test_a_folder_that_others_could_read_is_made_private(server: Server) -> None:
    server.state.mkdir(mode=0o755)
    server.start()
    assert server.state.stat().st_mode & 0o777 == 0o700


@pytest.mark.deep("restarts")
def test_systemd_is_told_when_the_server_is_ready_and_when_it_stops(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        server.start()
        assert manager.recv(100) == b"READY=1"
        server.stop()
        assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.deep("restarts")
def test_a_worker_that_cannot_start_ends_the_server_and_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif '--settings' in sys.orig_argv: sys.exit('broken on purpose')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    done = serve("--port", "0", "--state", str(server.state))
    assert done.returncode == 1
    assert "the server's worker ended with exit code 1" in done.stderr
    assert keeper_pid(server) == 0


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ramet.cli.main", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)


def start_without_waiting(server: Server) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ramet.cli.main", "serve", "--port", "0", "--state", str(server.state)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.deep("restarts")
def test_an_engine_of_another_build_is_recognised_and_left_alone(server: Server) -> None:
    server.start()
    sandbox_id = make_sandbox(server)
    server.kill()
    told = (server.state / keeper.PID_NAME).read_text().split()
    assert told[1:] == build().split()
    # The same version, built from other sources.
    (server.state / keeper.PID_NAME).write_text(f"{told[0]} {told[1]} 0123456789ab\n")
    command = [sys.executable, "-m", "ramet.cli.main", "serve", "--port", "0", "--state", str(server.state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 1, done
    assert f"belongs to Ramet {told[1]} (build 0123456789ab), but this is {told[1]} (build {told[2]})" in done.stderr
    assert f"kill {told[0]}" in done.stderr
    # It goes on, for the build that it belongs to.
    (server.state / keeper.PID_NAME).write_text(" ".join(told) + "\n")
    server.start()
    with connect(server.state) as connection:
        assert ask(connection, calls.INFO, {"sandbox": sandbox_id}).kind == calls.ANSWER
