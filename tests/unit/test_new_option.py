"""A new option of a sandbox is written in at most three files, and is then known to every door.

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
    "protocol/values/requests.py": [
        (
            "cwd: str | None = option(",
            'nickname: str | None = option(TEXT, "A name for people.", http_help="A name for people.", '
            'schema={"maxLength": 50}, command_line=CommandLine("--nickname", "name for people", "NAME"))\n',
        )
    ],
    "client/asynchronous/sandbox.py": [_KEYWORD, _PASSED_ON],
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
from ramet.protocol.values.requests import SandboxOptions
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


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of what is installed, with the option."""
    copy = tmp_path / "ramet"
    shutil.copytree(Path(ramet.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in EDITS.items():
        source = (copy / name).read_text()
        for line, added in edits:
            assert line in source
            source = "".join(
                f"{before[: len(before) - len(before.lstrip())]}{added}\n{before}"
                if before.strip().startswith(line)
                else before
                for before in source.splitlines(keepends=True)
            )
        (copy / name).write_text(source)
    subprocess.run([sys.executable, GENERATOR, "--client", copy / "client"], check=True, timeout=WAIT_SECONDS)
    return tmp_path


def test_an_option_that_few_files_describe_arrives_at_the_engine_from_every_door(package: Path) -> None:
    assert len(EDITS) <= 3
    done = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(package), "RAMET_URL": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
