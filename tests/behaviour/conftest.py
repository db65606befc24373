"""Sandboxes for the tests of what a user sees, over both faces of the SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ramet import Sandbox
from tests.behaviour.faces import AnySandbox, AwaitedSandbox, LoopThread, MakeSandbox


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


@pytest.fixture(params=["sync", "async", "fork"])
def make_any_sandbox(request: pytest.FixtureRequest, loop_thread: LoopThread) -> Iterator[MakeSandbox]:
    """Makes sandboxes with options, over each face in turn and as a fork of one; closes them after the test."""
    made: list[AnySandbox] = []

    def make(*arguments: Any, **options: Any) -> AnySandbox:
        sandbox: AnySandbox
        if request.param == "sync":
            sandbox = Sandbox(*arguments, **options)
        elif request.param == "fork":
            with Sandbox(*arguments, **options) as parent:
                (sandbox,) = parent.fork(1)
        else:
            sandbox = AwaitedSandbox(loop_thread, *arguments, **options)
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
