"""Code in a sandbox cannot put anything into the store of packages, look around in it, or choose where it is from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from ramet import Network, Sandbox
from tests.behaviour.package_sandboxes import HOST, Index, serving_index
from tests.network.package_index import package_index, source, wheel
from tests.network.routes import More, http_serving

pytest.importorskip("pip")

SECONDS = 80

# Asks as the program pip does, and keeps the folder that it is given.
ASK = """
import array, ctypes, errno, json, os, socket, struct

libc = ctypes.CDLL(None, use_errno=True)

def ask(request, raw=None):
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect("\\0ramet-packages")
        line.sendall(raw if raw is not None else json.dumps(request).encode() + b"\\n")
        data, folders = b"", []
        while True:
            piece, descriptors, _, _ = socket.recv_fds(line, 65536, 4)
            folders += descriptors
            data += piece
            if not piece:
                return [json.loads(one) for one in data.split(b"\\n") if one], folders

def call(*arguments):  # mount_setattr and open_tree, for which Python has no functions
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def settings():
    names = ("PIP_INDEX_URL", "PIP_TRUSTED_HOST")
    return {name: os.environ[name] for name in names}

def refusal(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


@pytest.fixture
def index() -> Iterator[Index]:
    with serving_index() as found:
        yield found


@pytest.fixture
def sandbox(index: Index) -> Iterator[Sandbox]:
    with index.sandbox() as made:
        assert made.run_code(ASK).exit_code == 0
        yield made


def answer(sandbox: Sandbox, code: str) -> object:
    """What the last line of a cell is, as JSON."""
    result = sandbox.run_code(f"{code}\nprint(json.dumps(found))", timeout=SECONDS)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.deep("load")
def test_the_folder_that_a_sandbox_is_given_can_be_read_and_nothing_else(sandbox: Sandbox) -> None:
    found = answer(
        sandbox,
        """
answers, (folder,) = ask({"requirements": ["tiny_thing"], "settings": settings()})
top = os.open(".", os.O_RDONLY, dir_fd=folder)
library = os.path.dirname(next(
    os.path.join(path, name) for path, _, names in os.walk(f"/proc/self/fd/{top}") for name in names
    if name == "tiny_thing.py"))
module = os.open(f"{library}/tiny_thing.py", os.O_RDONLY)
content = os.read(module, 100).decode()
inode = os.stat(top).st_ino
found = {
    "answer": sorted(answers[-1]),
    "content": content,
    "create": refusal(lambda: os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=top)),
    "write": refusal(lambda: os.open(f"{library}/tiny_thing.py", os.O_RDWR)),
    "write again": refusal(lambda: os.open(f"/proc/self/fd/{module}", os.O_WRONLY)),
    "truncate": refusal(lambda: os.truncate(f"{library}/tiny_thing.py", 0)),
    "remove": refusal(lambda: os.unlink(f"{library}/tiny_thing.py")),
    "rename": refusal(lambda: os.rename(f"{library}/tiny_thing.py", f"{library}/other.py")),
    "mode": refusal(lambda: os.fchmod(module, 0o777)),
    "owner": refusal(lambda: os.fchown(module, 0, 0)),
    "times": refusal(lambda: os.utime(module)),
    "attribute": refusal(lambda: os.setxattr(module, "user.x", b"1")),
    "link in": refusal(lambda: os.link("/etc/passwd", "x", dst_dir_fd=top)),
    "link out": refusal(lambda: os.link(f"{library}/tiny_thing.py", "/tmp/stolen")),
    "writable again": refusal(lambda: call(442, folder, b"", 0x1000, struct.pack("4Q", 0, 1, 0, 0), 32)),
    "mount again": refusal(lambda: call(428, folder, b"", 0x1001)),
    "above": [os.stat(name, dir_fd=top).st_ino == inode for name in ("..", "../..", "../../../..")],
    "from there": (os.fchdir(top), os.chdir(".."), os.chdir(".."), os.stat(".").st_ino == inode)[-1],
}
os.chdir("/root")
""",
    )
    assert found == {
        "answer": ["given"],
        "content": "version = '1.2'\n",
        "create": "EROFS",
        "write": "EROFS",
        "write again": "EROFS",
        "truncate": "EROFS",
        "remove": "EROFS",
        "rename": "EROFS",
        "mode": "EROFS",
        "owner": "EROFS",
        "times": "EROFS",
        "attribute": "EROFS",
        "link in": "EROFS",
        "link out": "EXDEV",
        "writable again": "EPERM",
        "mount again": "EPERM",
        "above": [True, True, True],
        "from there": True,
    }


@pytest.mark.deep("load")
def test_what_a_sandbox_does_to_its_own_packages_reaches_nobody_else(index: Index, sandbox: Sandbox) -> None:
    poison = """
import importlib
%pip install -q tiny_thing
import tiny_thing, glob, site
path = tiny_thing.__file__
for each in [path, *glob.glob(os.path.dirname(path) + "/__pycache__/tiny_thing*")]:
    with open(each, "wb") as file:
        file.write(b"version = 'poisoned'")
found = os.path.exists("/.ramet/packages")
"""
    assert answer(sandbox, poison) is False
    with index.sandbox() as other:
        assert other.run_code("%pip install -q tiny_thing", timeout=SECONDS).exit_code == 0
        assert other.run_code("import tiny_thing; tiny_thing.version").value == "'1.2'"


@pytest.mark.parametrize(
    "requirement",
    [
        "tiny_thing @ http://evil.example/tiny_thing-1.0-py3-none-any.whl",
        "--index-url=http://evil.example/simple",
        "-r/etc/passwd",
        "/etc",
        "./tiny_thing-1.0-py3-none-any.whl",
        "tiny_thing-1.0-py3-none-any.whl",
        "tiny_thing\n--index-url=http://evil.example",
    ],
)
def test_nothing_but_names_is_taken(sandbox: Sandbox, index: Index, requirement: str) -> None:
    request = {"requirements": [requirement], "settings": dict(index.options["env"])}
    request["settings"].pop("UV_DEFAULT_INDEX")  # type: ignore[attr-defined]
    found = answer(sandbox, f"answers, folders = ask({request!r})\nfound = [sorted(answers[0]), folders]")
    assert found == [["why"], []]
    assert index.server.requests == []


@pytest.mark.deep("load")
def test_an_index_that_the_owner_did_not_choose_is_not_asked(index: Index) -> None:
    """Neither by a variable that the code sets, nor by what it tells the engine."""
    with serving_index() as evil:
        network = Network(
            [index.server.rule(HOST), evil.server.rule("evil.example")],
            addresses={HOST: "127.0.0.1", "evil.example": "127.0.0.1"},
        )
        url = evil.url.replace(HOST, "evil.example")
        with Sandbox(network=network, env=index.options["env"]) as attacker:
            attacker.run_code(ASK)
            for more in ({"PIP_INDEX_URL": url}, {"PIP_EXTRA_INDEX_URL": url}, {"PIP_FIND_LINKS": url}):
                request = {"requirements": ["tiny_thing"], "settings": {**index.options["env"], **more}}
                found = answer(attacker, f"answers, folders = ask({request!r})\nfound = [sorted(answers[0]), folders]")
                assert found == [["why"], []]
            # It may use the other index for itself, which is all that comes of it.
            own = f"PIP_TRUSTED_HOST=evil.example PIP_INDEX_URL={url} pip install -q tiny_thing==1.0"
            assert attacker.run_code(own, language="bash", timeout=SECONDS).exit_code == 0
            asked = len(evil.server.requests)
            with Sandbox(network=network, env=index.options["env"]) as other:
                assert other.run_code("%pip install -q tiny_thing==1.0", timeout=SECONDS).exit_code == 0
            assert (index.downloads("tiny_thing"), len(evil.server.requests)) == (1, asked)


@pytest.mark.deep("load")
def test_odd_requests_and_many_connections_harm_nobody(
    sandbox: Sandbox, index: Index, neighbour_still_answers: Callable[[], None]
) -> None:
    found = answer(
        sandbox,
        """
import threading
odd = [b"\\n", b"{\\n", b"\\xff\\n", b"[" * 60000 + b"\\n", b"x" * 200000, b'{"requirements":[1]}\\n']
ends = []
for raw in odd:
    try:
        ends.append([sorted(one) for one in ask(None, raw)[0]])
    except OSError as error:
        ends.append(type(error).__name__)
# Connections that say nothing take the places of nobody but this sandbox.
silent = []
for _ in range(200):
    line = socket.socket(socket.AF_UNIX)
    line.setblocking(False)
    try:
        line.connect("\\0ramet-packages")
    except BlockingIOError:
        break
    silent.append(line)
for line in silent:
    line.close()
found = len(silent) < 200
""",
    )
    assert found is True
    neighbour_still_answers()
    with index.sandbox() as other:
        assert other.run_code("%pip install -q tiny_thing", timeout=SECONDS).exit_code == 0
    result = sandbox.run_code("%pip install -q tiny_thing\nimport tiny_thing; tiny_thing.version", timeout=SECONDS)
    assert result.value == "'1.2'"


@pytest.mark.deep("load")
def test_whoever_has_taken_the_name_of_the_socket_harms_only_itself(index: Index) -> None:
    with index.sandbox() as parent:
        parent.run_code("import socket")
        # The name is the engine's in this network; a copy that comes with the name taken goes without.
        taken = parent.run_code("s = socket.socket(socket.AF_UNIX); s.bind('\\0ramet-packages')")
        assert taken.exit_code == 1
        assert parent.run_code("%pip install -q tiny_thing", timeout=SECONDS).exit_code == 0


@pytest.mark.deep("load")
def test_a_sandbox_that_goes_away_while_it_waits_leaves_nothing_running(
    index: Index, neighbour_still_answers: Callable[[], None]
) -> None:
    for _ in range(3):
        with index.sandbox() as sandbox:
            sandbox.run_code(ASK)
            sandbox.run_code(
                "line = socket.socket(socket.AF_UNIX); line.connect('\\0ramet-packages');"
                "line.sendall(json.dumps({'requirements': ['larger_thing'], 'settings': settings()}).encode() + b'\\n')"
            )
    neighbour_still_answers()
    with index.sandbox() as last:
        assert last.run_code("%pip install -q larger_thing", timeout=SECONDS).exit_code == 0


@pytest.mark.deep("load")
def test_answers_that_are_left_unread_do_not_use_up_the_descriptors_of_all(
    sandbox: Sandbox, neighbour_still_answers: Callable[[], None]
) -> None:
    """The kernel counts those that lie in sockets for all of one uid: each sandbox has a few such places."""
    found = answer(
        sandbox,
        """
request = {"requirements": ["tiny_thing"], "settings": settings()}
ask(request)
unread = []
for _ in range(100):
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(1)
    try:
        line.connect("\\0ramet-packages")
        line.sendall(json.dumps(request).encode() + b"\\n")
        line.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        break
    unread.append(line)
found = [len(unread)]
for line in unread:
    line.close()
found.append(len(ask(request)[1]))
""",
    )
    assert found == [8, 1]
    neighbour_still_answers()


@pytest.mark.deep("load")
def test_a_copy_of_a_sandbox_that_holds_the_folder_does_not_hold_it(sandbox: Sandbox) -> None:
    """Neither as a descriptor, nor as its working folder, nor in its memory."""
    hold = """
import mmap
answers, (folder,) = ask({"requirements": ["larger_thing"], "settings": settings()})
top = os.open(".", os.O_RDONLY, dir_fd=folder)
os.fchdir(top)
path = next(os.path.join(path, name) for path, _, names in os.walk(".") for name in names if name == "larger_thing.py")
file = os.open(path, os.O_RDONLY)
mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
found = mapped[:7].decode()
"""
    assert answer(sandbox, hold) == "version"
    (child,) = sandbox.fork(1)
    with child:
        look = """
found = [mapped[:7].decode(), os.listdir(top), "larger_thing.py" in "".join(os.listdir("."))]
"""
        assert answer(child, look) == ["version", [], False]


def test_no_code_of_a_package_runs_while_it_is_installed() -> None:
    """A wheel may need another package by its URL: pip then takes sources, too, whatever it is told of wheels."""
    made: list[More] = []
    with http_serving(more=lambda request, answering: made[0](request, answering)) as server:
        here = f"http://{HOST}:{server.port}"
        code = f"import urllib.request; urllib.request.urlopen('{here}/the-code-was-run')"
        sources = source("built_thing", "1.0", code)
        made.append(package_index(wheel("sly_thing", "1.0", (f"built_thing @ {here}/packages/{sources[0]}",)), sources))
        with Index(server).sandbox() as sandbox:
            assert sandbox.run_code(ASK).exit_code == 0
            found = answer(sandbox, 'found = ask({"requirements": ["sly_thing"], "settings": settings()})[0][-1]')
        targets = [request.target for request in server.requests]
    assert any("built_thing" in target for target in targets)
    assert not any("the-code-was-run" in target for target in targets)
    assert isinstance(found, dict)
    assert list(found) == ["why"]
