"""Sandboxes for the tests of what a user sees, over both faces of the SDK, embedded and at a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ramet import Sandbox
from tests.behaviour.faces import AnySandbox, AwaitedSandbox, LoopThread, MakeSandbox
from tests.server.running import running_server


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def make_sandbox() -> Iterator[Callable[..., Sandbox]]:
    """Makes sandboxes with options; closes them after the test."""
    made: list[Sandbox] = []

    def make(*arguments: Any, **options: Any) -> Sandbox:
        sandbox = Sandbox(*arguments, **options)
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        sandbox.close()


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one server for all these tests, as a user starts it."""
    # Names that tests pin to this machine's own servers are more than the server lets anybody have by itself.
    with running_server(tmp_path_factory.mktemp("server"), "--network=open", "--network=127.0.0.1:*") as server:
        yield server.url


@pytest.fixture(params=["sync", "async", "fork", "http", "http-async"])
def make_any_sandbox(request: pytest.FixtureRequest, loop_thread: LoopThread) -> Iterator[MakeSandbox]:
    """Makes sandboxes with options, over each face in turn, as a fork, and at a server; closes them after the test."""
    url = request.getfixturevalue("server_url") if request.param.startswith("http") else None
    yield from _make_sandboxes(request.param, loop_thread, url)


@pytest.fixture(params=["sync", "async", "fork"])
def make_local_sandbox(request: pytest.FixtureRequest, loop_thread: LoopThread) -> Iterator[MakeSandbox]:
    """The same for options that name things of this machine, which a server does not take."""
    yield from _make_sandboxes(request.param, loop_thread, None)


def _make_sandboxes(face: str, loop_thread: LoopThread, url: str | None) -> Iterator[MakeSandbox]:
    made: list[AnySandbox] = []

    def make(*arguments: Any, **options: Any) -> AnySandbox:
        sandbox: AnySandbox
        if face == "fork":
            with Sandbox(*arguments, **options) as parent:
                (sandbox,) = parent.fork(1, inherit_secrets=True)
        elif face in ("async", "http-async"):
            sandbox = AwaitedSandbox(loop_thread, *arguments, **options, url=url)
        else:
            sandbox = Sandbox(*arguments, **options, url=url)
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def any_sandbox(make_any_sandbox: MakeSandbox) -> AnySandbox:
    return make_any_sandbox()


@pytest.fixture
def in_background() -> Iterator[Callable[..., Future[Any]]]:
    """Starts a call in a thread; its future is waited for with a bound."""
    with ThreadPoolExecutor(32) as threads:
        yield threads.submit
