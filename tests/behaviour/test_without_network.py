"""A sandbox without a network says so where a name cannot be looked up: at once, and with what to do about it."""

from __future__ import annotations

import pytest

from ramet import Language, Network, Sandbox
from tests.behaviour.faces import AnySandbox, MakeSandbox

NO_NETWORK = "this sandbox has no network, so 'data.example' cannot be looked up"
HINT = "Sandbox(network=['data.example'])"
HERE = {"data.example": "127.0.0.1"}
LISTED = Network(["data.example"], addresses=HERE)
# A minute of patience would meet this deadline.
CELL_SECONDS = 20


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.getaddrinfo('data.example', 443)",
        "import socket; socket.getaddrinfo(host=b'data.example', port=443)",
        "import socket; socket.gethostbyname('data.example')",
        "import socket; socket.gethostbyname_ex('data.example')",
        "import socket; socket.create_connection(('data.example', 443))",
        "import asyncio; await asyncio.open_connection('data.example', 443)",
        "import urllib.request; urllib.request.urlopen('https://data.example/')",
        "import httpx; httpx.get('https://data.example/')",
        "import requests; requests.get('https://data.example/')",
        "import pandas; pandas.read_csv('https://data.example/a.csv')",
    ],
)
def test_every_client_says_that_there_is_no_network(any_sandbox: AnySandbox, code: str) -> None:
    pytest.importorskip(code.split()[1].strip(";"))
    result = any_sandbox.run_code(code, timeout=CELL_SECONDS)
    assert (result.exit_code, result.interrupted) == (1, False)
    assert result.error is not None
    message = result.error.message.replace("\\", "")
    assert NO_NETWORK in message
    assert HINT in message


def test_the_error_has_the_class_and_the_number_that_libraries_look_for(any_sandbox: AnySandbox) -> None:
    code = """
        import pickle, socket
        try:
            socket.getaddrinfo('data.example', 443)
        except socket.gaierror as error:
            kept = error
        copied = pickle.loads(pickle.dumps(kept))
        (type(kept) is socket.gaierror, kept.errno == socket.EAI_NONAME, str(copied) == str(kept))
    """
    assert any_sandbox.run_code(code).value == "(True, True, True)"
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):  # as Pool.map of multiprocessing sends them
        same = any_sandbox.run_code(f"pickle.loads(pickle.dumps(socket.{name})) is socket.{name}")
        assert same.value == "True", name
    assert "ramet_guest" not in any_sandbox.run_code("socket.getaddrinfo('data.example', 443)").stderr


def test_names_of_this_machine_and_addresses_work_as_ever(any_sandbox: AnySandbox) -> None:
    code = """
        import socket
        server = socket.create_server(("localhost", 0))
        port = server.getsockname()[1]
        socket.create_connection(("localhost", port)).close()
        socket.create_connection(("127.0.0.1", port)).close()
        found = socket.getaddrinfo("192.0.2.1", 80, type=socket.SOCK_STREAM)[0][4]
        (socket.gethostbyname("sandbox"), socket.gethostbyname(socket.gethostname()), found)
    """
    assert any_sandbox.run_code(code).value == "('127.0.0.1', '127.0.0.1', ('192.0.2.1', 80))"


def test_an_error_about_something_else_is_left_alone(any_sandbox: AnySandbox) -> None:
    for code in (
        "import socket; socket.getaddrinfo('data.example', 1, flags=socket.AI_NUMERICHOST)",
        "socket.getaddrinfo('data.example', 1, 0, 0, 0, socket.AI_NUMERICHOST)",
        "socket.getaddrinfo('localhost', 'no-such-service')",
        "socket.getaddrinfo('localhost', 1, family=99)",
    ):
        result = any_sandbox.run_code(code)
        assert result.error is not None
        assert result.error.name == "gaierror"
        assert "network" not in result.error.message


def test_programs_are_told_that_the_name_is_not_known_and_not_to_try_again(any_sandbox: AnySandbox) -> None:
    script = """
        python -c 'import socket; socket.getaddrinfo("data.example", 443)'
        getent hosts localhost > /dev/null && echo localhost is known
    """
    result = any_sandbox.run_code(script, language="bash", timeout=CELL_SECONDS)
    assert "[Errno -2] Name or service not known" in result.stderr
    assert result.stdout == "localhost is known\n"


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("!pip install no-such-package-anywhere", "python"),
        ("pip install no-such-package-anywhere", "bash"),
        ("cd /tmp; pip3 install -U pip", "bash"),
        ("import subprocess\nsubprocess.run('pip download no-such-package', shell=True, check=True)", "python"),
    ],
)
def test_pip_in_every_shell_fails_at_once_with_a_hint(any_sandbox: AnySandbox, code: str, language: Language) -> None:
    pytest.importorskip("pip")
    result = any_sandbox.run_code(code, language=language, timeout=CELL_SECONDS)
    assert (result.ok, result.exit_code, result.interrupted) == (False, 1, False)
    assert "pip was not run: this sandbox has no network" in result.stderr
    assert "--find-links" in result.stderr


@pytest.mark.parametrize(
    "code",
    [
        "!python -m pip install no-such-package-anywhere",
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'pip', 'install', 'no-such-package-anywhere'], check=True)",
    ],
)
def test_pip_as_a_module_says_what_is_wrong_and_tries_again_once(any_sandbox: AnySandbox, code: str) -> None:
    pytest.importorskip("pip")
    result = any_sandbox.run_code(code, timeout=CELL_SECONDS)
    assert (result.ok, result.exit_code, result.interrupted) == (False, 1, False)
    assert result.stderr.count("WARNING: Retrying") == 1
    assert "Name or service not known" in result.stderr


@pytest.mark.parametrize("program", ["pip", "uv pip"])
def test_programs_that_install_ask_a_busy_index_twice(any_sandbox: AnySandbox, program: str) -> None:
    pytest.importorskip(program.split()[0])
    code = """
        import http.server, os, subprocess, sys, threading
        asked = []
        class Busy(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_error(503)
            def log_message(self, *arguments):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}/simple/"
        install = ["PROGRAM", "install", "--target", "/tmp/there", "--index-url", index, "no-such-package-anywhere"]
        code = subprocess.run([sys.executable, "-m", *" ".join(install).split()], capture_output=True).returncode
        (code != 0, len(asked))
    """.replace("PROGRAM", program)
    assert any_sandbox.run_code(code, timeout=60).value == "(True, 2)"


def test_an_owner_says_how_often_pip_tries_again(make_any_sandbox: MakeSandbox) -> None:
    pytest.importorskip("pip")
    sandbox = make_any_sandbox(env={"PIP_RETRIES": "2"})
    result = sandbox.run_code("!python -m pip install no-such-package-anywhere", timeout=CELL_SECONDS)
    assert result.stderr.count("WARNING: Retrying") == 2


@pytest.mark.deep("load")
def test_pip_does_what_needs_no_index(make_any_sandbox: MakeSandbox) -> None:
    pytest.importorskip("pip")
    sandbox = make_any_sandbox()
    script = "pip --version && pip install pip && pip download --no-index --find-links /tmp nothing; echo $?"
    result = sandbox.run_code(script, language="bash", timeout=60)
    assert result.stdout.startswith("pip ")
    assert "Requirement already satisfied: pip" in result.stdout
    assert "No matching distribution found for nothing" in result.stderr
    sandbox.files.write("/root/.config/pip/pip.conf", "[global]\nno-index = true\n")
    result = sandbox.run_code("!pip install no-such-package-anywhere", timeout=60)
    assert (result.ok, "pip was not run" in result.stderr) == (False, False)
    assert "No matching distribution found for no-such-package-anywhere" in result.stderr


def test_an_owners_own_path_has_the_same_pip(make_any_sandbox: MakeSandbox) -> None:
    pytest.importorskip("pip")
    sandbox = make_any_sandbox(env={"PATH": "/usr/bin:/bin"})
    result = sandbox.run_code("!pip install no-such-package-anywhere", timeout=CELL_SECONDS)
    assert "pip was not run: this sandbox has no network" in result.stderr


def test_where_there_is_a_network_a_refused_name_is_told_as_ever(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(network=Network(["other.example"], addresses=HERE))
    look = "import socket; socket.getaddrinfo('data.example', 443)"
    result = sandbox.run_code(look)
    assert result.error is not None
    assert result.error.message == "[Errno -2] Name or service not known"
    sandbox.network.allow("data.example")
    assert sandbox.run_code(look).ok


def test_it_goes_by_the_sandbox_that_the_code_is_in_now() -> None:
    """A fork has its parent's network; a sandbox made of a snapshot has its own, or none."""
    look = "import socket; socket.getaddrinfo('data.example', 443)[0][4][1]"
    with Sandbox() as without, Sandbox(network=LISTED) as online:
        assert NO_NETWORK in without.run_code(look).stderr
        assert online.run_code(look).value == "443"
        (child,) = online.fork()
        (lonely,) = without.fork()
        with child, lonely:
            assert child.run_code(look).value == "443"
            assert NO_NETWORK in lonely.run_code(look).stderr
        with online.snapshot() as snapshot, Sandbox(snapshot) as offline:
            assert NO_NETWORK in offline.run_code(look).stderr
        with without.snapshot() as snapshot, Sandbox(snapshot, network=LISTED) as now_online:
            assert now_online.run_code(look).value == "443"
