"""Programs that install and clone, in a sandbox with rules: pip, uv and git, over HTTP and HTTPS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import trustme

from ramet import Network, Sandbox
from tests.network.clients import AUTHORITY_FILE, TRUST
from tests.network.git_repository import git_over_http, make_repository
from tests.network.package_index import package_index, wheel
from tests.network.routes import Answering, More, http_serving
from tests.network.servers import Request, Server

# Starting pip takes seconds on a busy machine.
INSTALL_SECONDS = 90
_SETTINGS = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_TRUSTED_HOST": "pypi-index.example other.example",  # it would not use plain HTTP otherwise
    "UV_LINK_MODE": "copy",  # or it says that its cache lies on another file system
}


@dataclass(frozen=True)
class Place:
    server: Server
    sandbox: Sandbox

    def bash(self, command: str) -> tuple[int, str]:
        """Exit code, and all that it printed."""
        result = self.sandbox.run_code(command, language="bash", timeout=INSTALL_SECONDS)
        return result.exit_code, result.stdout + result.stderr


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> More:
    """A package index and a git repository."""
    folder = tmp_path_factory.mktemp("repositories")
    make_repository(folder)
    parts = (
        package_index(wheel("tiny_thing", "1.2"), wheel("needs_it", "2.0", ("tiny_thing>=1",))),
        git_over_http(folder),
    )

    def answer(request: Request, answering: Answering) -> bool:
        return any(part(request, answering) for part in parts)

    return answer


@pytest.fixture(scope="module", params=["http", "https"])
def place(request: pytest.FixtureRequest, things: More, authority: trustme.CA, authority_pem: str) -> Iterator[Place]:
    with http_serving(authority if request.param == "https" else None, things) as server:
        network = Network(
            [server.rule("pypi-index.example")],
            addresses={"pypi-index.example": "127.0.0.1", "other.example": "127.0.0.1"},
        )
        with Sandbox(network=network, env={**TRUST, **_SETTINGS}) as made:
            made.files.write(AUTHORITY_FILE, authority_pem.encode())
            yield Place(server, made)


@pytest.mark.deep("load")
def test_pip_installs_with_dependencies(place: Place) -> None:
    index = place.server.url("/simple/", "pypi-index.example")
    code, said = place.bash(f"python -m pip install --target /tmp/by-pip --index-url {index} needs-it")
    assert code == 0, said
    assert place.bash("cat /tmp/by-pip/tiny_thing.py") == (0, "version = '1.2'\n")


def test_uv_installs_with_dependencies(place: Place) -> None:
    index = place.server.url("/simple/", "pypi-index.example")
    code, said = place.bash(f"uv pip install --target /tmp/by-uv --index-url {index} needs-it")
    assert code == 0, said
    assert place.bash("cat /tmp/by-uv/tiny_thing.py") == (0, "version = '1.2'\n")


def test_git_clones(place: Place) -> None:
    url = place.server.url("/git/project.git", "pypi-index.example")
    code, said = place.bash(f"rm -rf /tmp/copy-by-git; git clone {url} /tmp/copy-by-git")
    assert code == 0, said
    assert place.bash("cat /tmp/copy-by-git/hello.txt") == (0, "hello from git\n")


# pip tells the status of an index page only when it is asked to be verbose, uv nothing but that there was no tunnel.
_REFUSED = {
    "pip": (
        "python -m pip -vv install --retries 1 --target /tmp/p --index-url URL/simple/ needs-it",
        "no rule",
        "no rule",
    ),
    "uv": ("UV_HTTP_RETRIES=0 uv pip install --no-cache --target /tmp/u --index-url URL/simple/ x", "403", "tunnel"),
    "git": ("git clone URL/git/project.git /tmp/refused", "error: 403", "403"),
}


@pytest.mark.parametrize("program", _REFUSED)
def test_an_index_or_repository_in_no_rule_is_refused(place: Place, program: str) -> None:
    before = place.server.connections
    command, of_requests, of_tunnels = _REFUSED[program]
    code, said = place.bash(command.replace("URL", place.server.url("", "other.example")))
    assert code != 0
    assert "other.example" in said
    assert (of_tunnels if place.server.scheme == "https" else of_requests) in said
    assert place.server.connections == before
    last = place.sandbox.network.log()[-1]
    assert (last.host, last.allowed) == ("other.example", False)
    assert "no rule" in str(last.reason)


def test_what_was_installed_is_in_a_fork(place: Place) -> None:
    index = place.server.url("/simple/", "pypi-index.example")
    command = f"uv pip install --system --break-system-packages --python $(which python) --index-url {index} tiny-thing"
    code, said = place.bash(command)
    assert code == 0, said
    assert place.sandbox.run_code("import tiny_thing; tiny_thing.version").value == "'1.2'"
    with place.sandbox.fork(1) as (child,):
        assert child.run_code("import subprocess, sys; tiny_thing.version").value == "'1.2'"
        assert child.run_code("subprocess.run([sys.executable, '-c', 'import tiny_thing']).returncode").value == "0"
    with Sandbox() as another:
        assert another.run_code("import tiny_thing").exit_code == 1
