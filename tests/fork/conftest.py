"""A parent to fork, and forks that are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ramet import Sandbox
from tests.fork import loop_work
from tests.fork.relatives import TOOLS, Fork, run


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A fresh sandbox; if its Python dies, it starts empty again."""
    with Sandbox(recover="fresh") as fresh:
        yield fresh


@pytest.fixture(params=["idle_loop", pytest.param("busy_loop", marks=pytest.mark.deep("load"))])
def parent(request: pytest.FixtureRequest, sandbox: Sandbox) -> Sandbox:
    """A fresh sandbox with the tools of these tests in its namespace.

    Deep tests run every test again with work of every kind pending in its event loop.
    """
    if request.param == "busy_loop":
        if request.node.get_closest_marker("idle_loop") is not None:
            pytest.skip("this test is about something that work in the loop would change")
        loop_work.begin(sandbox)
    run(sandbox, TOOLS)
    return sandbox


# Modules whose tests say what a child has: a sandbox that went through an image on disk has the same.
_CONTRACT = {"test_contract", "test_contract_of_files", "test_threads"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fork" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in _CONTRACT:
        through_an_image = pytest.param("image", marks=pytest.mark.deep("load"))
        metafunc.parametrize("fork", ["fork", through_an_image], indirect=True)


@pytest.fixture
def fork(request: pytest.FixtureRequest) -> Iterator[Fork]:
    """Forks a sandbox; the children are closed after the test. By "image", each comes from an image on disk."""
    through_an_image = getattr(request, "param", "fork") == "image"
    with ExitStack() as stack:

        def fork_and_close_later(sandbox: Sandbox, n: int = 1, **options: Any) -> list[Sandbox]:
            if through_an_image:
                if options:
                    pytest.skip("only forks have these options")
                with sandbox.snapshot() as snapshot:
                    snapshot.save("through-an-image")
                return [stack.enter_context(Sandbox("through-an-image")) for _ in range(n)]
            children = sandbox.fork(n, **options)
            assert len(children) == n
            for child in children:
                stack.callback(child.close)
            return list(children)

        yield fork_and_close_later


@pytest.fixture(scope="session")
def memory_is_counted() -> None:
    """Where no control group for memory is writable, a limit is an rlimit and forks are not counted at all."""
    with Sandbox() as sandbox:
        if "cgroup v" not in str(sandbox.info().walls["memory"]):
            pytest.skip("this host has no writable control group for memory")
