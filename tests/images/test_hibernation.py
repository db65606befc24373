"""Hibernated sandboxes: no memory, no processes, and every call wakes them as they were."""

from __future__ import annotations

import contextlib
import os
import socket
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ramet import Mount, RametError, Sandbox, SandboxClosed
from tests.images.states import LOOK, SEEN, STATE
from tests.images.stores import ImageFolder

_SERVER = """
import http.server, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"awake")
    def log_message(self, *_): pass
served = http.server.HTTPServer(("127.0.0.1", 8123), Answer)
threading.Thread(target=served.serve_forever, daemon=True).start()
"""


@pytest.mark.promise("sleep-keeps-everything")
def test_a_woken_sandbox_has_all_that_it_had() -> None:
    with Sandbox() as sandbox:
        assert sandbox.run_code(STATE).ok
        assert sandbox.hibernate() > 0
        assert sandbox.info().state == "hibernated"
        assert [row.state for row in Sandbox.list_all() if row.id == sandbox.id] == ["hibernated"]
        assert [sandbox.run_code(code).text for code in LOOK] == SEEN
        assert sandbox.info().state == "idle"


@pytest.mark.promise("sleep-keeps-everything")
def test_all_that_can_be_frozen_of_deleted_files_and_queues_comes_back() -> None:
    with Sandbox(history=False) as sandbox:
        cell = """
        import hashlib, os, tempfile
        gone = tempfile.TemporaryFile()
        data = os.urandom(60 << 20)
        gone.write(data); gone.flush(); gone.seek(0)
        digest = hashlib.sha256(data).hexdigest()
        del data
        """
        assert sandbox.run_code(textwrap.dedent(cell)).ok
        assert sandbox.hibernate() > 60 << 20
        assert sandbox.run_code("hashlib.sha256(gone.read()).hexdigest() == digest").value == "True"


def named(name: str) -> int:
    """How many processes of this machine have this name and memory."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found += (entry / "comm").read_text().strip() == name and (entry / "statm").read_text()[0] != "0"
    return found


@pytest.mark.promise("sleep-keeps-everything")
def test_a_hibernated_sandbox_has_no_process_and_no_memory() -> None:
    with Sandbox() as sandbox:
        pid, name = sandbox.info().pid, f"zz{os.getpid()}"
        sandbox.run_code(f"_ = open('/proc/self/comm', 'w').write('{name}')")
        assert named(name) == 1
        sandbox.hibernate()
        assert named(name) == 0
        info = sandbox.info()
        assert (info.pid, info.usage.get("memory_bytes", 0), info.usage["spilled_bytes"]) == (0, 0, 0)
        assert sandbox.hibernate() == 0  # it sleeps already
        assert sandbox.run_code("1 + 1").value == "2"
        assert sandbox.info().pid not in (0, pid)


def _port(url: str) -> int:
    return urlsplit(url).port or 0


def _write(sandbox: Sandbox) -> object:
    return sandbox.upload(b"new", "/root/new.txt")


def _fork(sandbox: Sandbox) -> object:
    with sandbox.fork(2) as children:
        return [child.run_code("x").value for child in children]


def _diff(sandbox: Sandbox) -> object:
    with Sandbox() as other:
        return sorted(change.name for change in sandbox.diff(other).names)


WAKING: dict[str, Callable[[Sandbox], object]] = {
    "cell": lambda sandbox: sandbox.run_code("x").value,
    "bash": lambda sandbox: sandbox.run_code("cat note.txt", language="bash").stdout,
    "read": lambda sandbox: sandbox.download("note.txt"),
    "write": _write,
    "list": lambda sandbox: [entry.name for entry in sandbox.files.list("/root")],
    "get": lambda sandbox: sandbox.get("x"),
    "set": lambda sandbox: sandbox.set("x", 6),
    "fork": _fork,
    "snapshot": lambda sandbox: sandbox.snapshot().close(),
    "diff": _diff,
    "undo": lambda sandbox: sandbox.rewind("p0"),
    "terminal": lambda sandbox: sandbox.terminal().close(),
    "tools": lambda sandbox: sandbox.set_tools([]),
    "expose": lambda sandbox: sandbox.expose(8123),
}


_FAST = ("cell", "read", "fork", "expose")


@pytest.mark.parametrize(
    "call", [call if call in _FAST else pytest.param(call, marks=pytest.mark.deep("load")) for call in WAKING]
)
def test_every_kind_of_call_wakes_it(call: str) -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("x = 5; open('note.txt', 'w').write('hello')")
        awake = WAKING[call](sandbox) if call not in ("write", "set", "undo") else None
        sandbox.hibernate()
        asleep = WAKING[call](sandbox)
        assert sandbox.info().state == "idle"
        if call in ("cell", "bash", "read", "list", "get", "fork", "diff"):
            assert asleep == awake


def test_calls_that_come_while_it_falls_asleep_wait_and_wake_it() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("seen = []; data = bytearray(64 << 20); open('note.txt', 'w').write('hello')")
        with ThreadPoolExecutor(8) as pool:
            sleeps = pool.submit(sandbox.hibernate)
            cells = [pool.submit(sandbox.run_code, f"seen.append({number})") for number in range(4)]
            files = [pool.submit(sandbox.download, "note.txt") for _ in range(3)]
            assert sleeps.result() > 0
            assert all(cell.result().ok for cell in cells)
            assert {file.result() for file in files} == {b"hello"}
        assert sorted(sandbox.get("seen")) == [0, 1, 2, 3]


def test_work_of_threads_is_neither_lost_nor_done_twice(tmp_path: Path) -> None:
    """What a thread does outside the sandbox after the freeze would be done again by the woken one."""
    tmp_path.chmod(0o777)
    with Sandbox(mounts={"/outside": Mount(str(tmp_path), writable=True)}) as sandbox:
        sandbox.run_code(
            "import os, threading, time; done = []; data = os.urandom(32 << 20)\n"
            "def work():\n"
            "    with open('/outside/work.txt', 'a') as out:\n"
            "        for number in range(100000):\n"
            "            done.append(number); out.write(f'{number}\\n'); out.flush(); time.sleep(0.001)\n"
            "threading.Thread(target=work, daemon=True).start()"
        )
        for _ in range(3):
            sandbox.hibernate()
            assert sandbox.run_code("time.sleep(0.01); len(done) > 0").value == "True"
            numbers = [int(line) for line in (tmp_path / "work.txt").read_text().splitlines()[:-1]]
            assert numbers == list(range(len(numbers)))


@pytest.mark.deep("load")
def test_pending_work_of_the_cells_loop_goes_on() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("import asyncio\nasync def late():\n    await asyncio.sleep(0.2); return 7")
        sandbox.run_code("task = asyncio.get_running_loop().create_task(late()); await asyncio.sleep(0)")
        sandbox.hibernate()
        assert sandbox.run_code("await task").value == "7"


def test_tools_rules_and_secrets_are_there_again() -> None:
    from ramet import Secret

    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    secrets = {"KEY": Secret("secret value", hosts=["api.example"])}
    with Sandbox(tools=[double], network=["api.example"], secrets=secrets) as s:
        before = s.run_code("import os; double(3), os.environ['KEY']").value
        s.hibernate()
        assert s.run_code("double(3), os.environ['KEY']").value == before
        assert s.network.rules == ("api.example",)


def test_a_connection_to_an_exposed_port_wakes_it() -> None:
    with Sandbox() as sandbox:
        assert sandbox.run_code(_SERVER).ok
        with sandbox.expose(8123) as exposed:
            sandbox.hibernate()
            with socket.create_connection(("127.0.0.1", _port(exposed.url)), timeout=60) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
            assert answer.endswith(b"awake")
            assert sandbox.info().state == "idle"


def test_history_shows_its_steps_and_what_is_not_kept() -> None:
    with Sandbox(history=5) as sandbox:
        for number in range(3):
            sandbox.run_code(f"x = {number}")
        sandbox.hibernate()
        asleep = sandbox.history()
        assert [point.cell_id for point in asleep] == [0, 1, 2, 3]
        assert [point.kept for point in asleep] == [True, False, False, False]
        assert "written to disk" in asleep[1].note
        assert "sleeps in it" in asleep[-1].note
        sandbox.run_code("x = 'spoilt'")
        sandbox.undo()
        assert sandbox.get("x") == 2


@pytest.mark.deep("load")
def test_a_crash_after_the_wake_up_costs_one_cell() -> None:
    with Sandbox(history=5) as sandbox:
        sandbox.run_code("x = 5")
        sandbox.hibernate()
        assert sandbox.run_code("import ctypes; ctypes.string_at(0)").state == "restored"
        assert sandbox.get("x") == 5


def test_closing_a_hibernated_sandbox_removes_its_image(store: ImageFolder) -> None:
    program = """
    import os
    from ramet import Sandbox
    first, second = Sandbox(), Sandbox()
    first.hibernate(); second.hibernate()
    first.close()
    """
    store.program(program)
    assert [name for name in store.names() if name.startswith("space-")] == []


def test_it_stays_awake_where_no_image_can_be_written(store: ImageFolder) -> None:
    store.variables = {"RAMET_IMAGES": "off"}
    program = """
    from ramet import Sandbox, RametError
    with Sandbox() as sandbox:
        sandbox.run_code("import subprocess; child = subprocess.Popen(['sleep', '1000']); x = 5")
        try:
            sandbox.hibernate()
        except RametError as error:
            print(error.message)
        print(sandbox.run_code("x, child.poll()").value, sandbox.info().state)
    """
    said, after = store.program(program).strip().splitlines()
    assert "no folder for images" in said
    assert after == "(5, None) idle"


def test_a_call_after_close_is_told_so() -> None:
    sandbox = Sandbox()
    sandbox.hibernate()
    sandbox.close()
    with pytest.raises(SandboxClosed):
        sandbox.run_code("1")


@pytest.mark.deep("load")
def test_closing_it_while_it_falls_asleep_ends_both() -> None:
    sandbox = Sandbox()
    sandbox.run_code("data = bytearray(256 << 20)")
    said: list[BaseException | None] = []

    def sleep() -> None:
        try:
            sandbox.hibernate()
        except RametError as error:
            said.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    sandbox.close()
    thread.join(60)
    assert not thread.is_alive()
    assert sandbox.id not in [row.id for row in Sandbox.list_all()]


_LEAVING = """
import os, sys, threading, time
from ramet import Sandbox, SandboxClosed
images = sys.argv[1]

def is_writing():
    for entry in os.listdir(images):
        try:
            if entry.startswith(".new-") and os.path.getsize(f"{images}/{entry}/files") > 1 << 20:
                return True
        except OSError:
            pass

sandbox = Sandbox(history=False)
assert sandbox.run_code("import os; open('/root/big', 'wb').write(os.urandom(100 << 20))").ok
said = []

def hibernate():
    try:
        said.append(sandbox.hibernate())
    except SandboxClosed as error:
        said.append(error)

thread = threading.Thread(target=hibernate)
thread.start()
while not is_writing() and not said:
    time.sleep(0.001)
sandbox.close()
thread.join()
print(sandbox.id)
"""


def test_nothing_is_left_of_a_sandbox_that_is_closed_while_it_is_written(warm_store: ImageFolder) -> None:
    sandbox_id = warm_store.program(_LEAVING, str(warm_store.folder / "images")).strip()
    assert not [name for name in (*warm_store.names(), *_journals(warm_store)) if sandbox_id in name]


def test_nothing_is_left_of_a_winner_that_has_slept(warm_store: ImageFolder) -> None:
    program = """
    from ramet import Sandbox
    with Sandbox() as parent:
        with parent.fork() as (child,):
            child.run_code("x = 2")
            child.hibernate()
            parent.merge_into(child)
        print(parent.run_code("x").value, child.id)
    """
    value, child_id = warm_store.program(program).split()
    assert value == "2"
    assert not [name for name in (*warm_store.names(), *_journals(warm_store)) if child_id in name]


def _journals(store: ImageFolder) -> list[str]:
    return os.listdir(store.folder / "sandboxes")
