"""A new option of a sandbox, or of an operation on one, is written in few files, and is then known to every door.

The test invents one, adds it to a copy of the package, and looks where it arrives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ramet

WAIT_SECONDS = 120
_KEYWORD = ("secrets: Secrets | None = None,", "nickname: str | None = None,")
_PASSED_ON = ("secrets=secrets,", "nickname=nickname,")
# For each file: a line, and the lines that are added before it wherever it stands.
EDITS = {
    "protocol/requests/sandboxes.py": [
        (
            "cwd: str | None = option(",
            'nickname: str | None = option(TEXT, "A name for people.", http_help="A name for people.", '
            'schema={"maxLength": 50}, command_line=CommandLine("--nickname", "name for people", "NAME"))\n',
        )
    ],
    "client/asynchronous/sandbox.py": [_KEYWORD, _PASSED_ON],
}
# The same for one of `undo`: what is replaced, by what.
UNDO_EDITS = {
    "protocol/requests/operations.py": [
        (
            '"""The arguments of ``undo``."""\n',
            '"""The arguments of ``undo``."""\n    reason: str | None = option(TEXT, "Why", '
            'http_help="Why.", schema={"maxLength": 50}, '
            'command_line=CommandLine("--reason", "why", "TEXT"))\n',
        )
    ],
    "client/asynchronous/sandbox.py": [
        ("async def undo(self, n: int = 1)", "async def undo(self, n: int = 1, reason: str | None = None)"),
        ("UndoOptions(n=n)", "UndoOptions(n=n, reason=reason)"),
    ],
}
GENERATOR = Path(__file__).resolve().parents[2] / "tools" / "generate-sync"

# Nothing is started: the first thing that an operation yields is the frame for the engine.
PROGRAM = """
import sys
from pathlib import Path

from ramet.cli import main
from ramet.client.asynchronous import sandbox as async_sandbox
from ramet.client.blocking import sandbox
from ramet.client.drivers import blocking, blocking_bases
from ramet.errors import InvalidArgument
from ramet.isolation.files import interpreter
from ramet.protocol import calls
from ramet.protocol.frames import TO_ENGINE, FrameDecoder
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.specs import SandboxSpec, ThawSpec
from ramet.doors.http.documentation import openapi; from ramet.doors.http.routes import sandboxes
from ramet.doors.http.access.admission import Creation
from ramet.doors.http.settings import ServerSettings

class Sent(Exception):
    pass

def keep(engine, operation, adopt):
    frame, = FrameDecoder(TO_ENGINE).feed(next(operation))
    raise Sent(SandboxSpec.read(frame.header).nickname)

def sent(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Sent as found:
        return str(found)

blocking.make = keep
blocking_bases.engine_for = lambda template: None

# keywords
assert sent(sandbox.Sandbox, nickname="a") == "a"
assert async_sandbox.AsyncSandbox(nickname="b")._creation.spec.nickname == "b"
assert sent(sandbox.Sandbox) == "None"
try:
    sandbox.Sandbox(nickname=5)
except InvalidArgument as error:
    assert error.argument == "nickname", error
else:
    raise AssertionError("a number is no nickname")

# the command line
assert sent(main.main, ["shell", "--nickname", "c"]) == "c"

# over HTTP, as JSON and as the SDK asks
creation = Creation(ServerSettings(Path("/nowhere")), interpreter.find(sys.executable))
kind, header = creation.create(sandboxes._sandbox_options({"nickname": "d"}), "me")
assert (kind, SandboxSpec.read(header).nickname) == (calls.CREATE, "d")
kind, header = creation.create(SandboxOptions.read(SandboxOptions(nickname="e").header()), "me")
assert SandboxSpec.read(header).nickname == "e"
try:
    sandboxes._sandbox_options({"nickname": 5})
except InvalidArgument as error:
    assert error.argument == "nickname", error
else:
    raise AssertionError("a number is no nickname")

described = openapi.document()["components"]["schemas"]["NewSandbox"]["properties"]["nickname"]
assert described == {"type": ["string", "null"], "maxLength": 50, "description": "A name for people."}

# from a snapshot: asked for, or as the frozen one had it
frozen = SandboxSpec.read(header)
thawed = ThawSpec.read(creation.thaw(sandboxes._sandbox_options({"nickname": "f"}), "snp_1", "me"))
assert thawed.whole(frozen).nickname == "f"
assert ThawSpec.read(creation.thaw(SandboxOptions(), "snp_1", "me")).whole(frozen).nickname == "e"
"""

UNDO_PROGRAM = """
import asyncio
from contextlib import nullcontext

from ramet.cli import main
from ramet.cli.sandboxes import undo
from ramet.client.asynchronous.sandbox import AsyncSandbox
from ramet.client.blocking.sandbox import Sandbox
from ramet.client.drivers import asynchronous, blocking
from ramet.client.handle import SandboxHandle
from ramet.doors.http.documentation import openapi
from ramet.doors.http.requests.bodies import JsonBody
from ramet.doors.http.requests.exchange import RequestExchange
from ramet.doors.http.routes import history
from ramet.errors import InvalidArgument
from ramet.protocol import calls
from ramet.protocol.frames import TO_ENGINE, FrameDecoder
from ramet.protocol.requests.operations import UndoOptions

sent = []

def keep(engine, operation):
    frame, = FrameDecoder(TO_ENGINE).feed(next(operation))
    assert frame.kind == calls.UNDO
    sent.append(UndoOptions.read(frame.header))
    raise InvalidArgument("kept")

async def keep_later(engine, operation):
    keep(engine, operation)

class NoEngine:
    remote = running = False

    def check(self):
        pass

def of(kind):
    return kind._adopted(SandboxHandle(NoEngine(), "sbx_1"))

def refused(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except InvalidArgument as error:
        return error
    raise AssertionError("not refused")

blocking.perform, asynchronous.perform = keep, keep_later

# keywords
refused(of(Sandbox).undo, 2, reason="a")
refused(asyncio.run, of(AsyncSandbox).undo(reason="b"))
assert refused(of(Sandbox).undo, reason=5).argument == "reason"

# the command line
undo.server, undo.find = lambda chosen: nullcontext(""), lambda url, sandbox_id: of(Sandbox)
assert main.main(["undo", "sbx_1", "3", "--reason", "c"]) == 1
assert [(one.n, one.reason) for one in sent] == [(2, "a"), (1, "b"), (3, "c")]

# over HTTP
class Exchange:
    owner = "me"
    read_options = RequestExchange.read_options

    def __init__(self, **given):
        self.given = given

    async def read_fields(self):
        return JsonBody(self.given)

async def ask(exchange, kind, header):
    sent.append(UndoOptions.read(header))
    raise InvalidArgument("kept")

history.ask = ask
refused(asyncio.run, history.undo(Exchange(reason="d", n=4.0), "sbx_1"))
assert (sent[-1].n, sent[-1].reason) == (4, "d")
assert refused(asyncio.run, history.undo(Exchange(reason=5), "sbx_1")).argument == "reason"
assert refused(asyncio.run, history.undo(Exchange(raison="d"), "sbx_1")).hint == "fields: n, reason"
operation = openapi.document()["paths"]["/v1/sandboxes/{sandbox_id}/undo"]["post"]
described = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]["reason"]
assert described == {"type": ["string", "null"], "maxLength": 50, "description": "Why."}
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of what is installed."""
    copy = tmp_path / "ramet"
    shutil.copytree(Path(ramet.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def package(copied: Path) -> Path:
    """With the option of a sandbox."""
    for name, edits in EDITS.items():
        source = (copied / name).read_text()
        for line, added in edits:
            assert line in source
            source = "".join(
                f"{before[: len(before) - len(before.lstrip())]}{added}\n{before}"
                if before.strip().startswith(line)
                else before
                for before in source.splitlines(keepends=True)
            )
        (copied / name).write_text(source)
    return _generated(copied)


def _generated(copied: Path) -> Path:
    """With the blocking client made anew. Returns the folder to import from."""
    subprocess.run([sys.executable, GENERATOR, "--client", copied / "client"], check=True, timeout=WAIT_SECONDS)
    return copied.parent


def test_an_option_that_few_files_describe_arrives_at_the_engine_from_every_door(package: Path) -> None:
    assert len(EDITS) <= 3
    _runs(PROGRAM, package)


def test_an_option_of_an_operation_arrives_at_the_engine_from_every_door(copied: Path) -> None:
    for name, edits in UNDO_EDITS.items():
        source = (copied / name).read_text()
        for before, after in edits:
            assert source.count(before) == 1
            source = source.replace(before, after)
        (copied / name).write_text(source)
    _runs(UNDO_PROGRAM, _generated(copied))


def _runs(program: str, package: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", program],
        env={**os.environ, "PYTHONPATH": str(package), "RAMET_URL": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
