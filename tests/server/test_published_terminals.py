"""The published client's terminals against our server: what it sends is understood, and it understands what comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import podflare
import pytest

from tests.server.running import Server

WAIT_SECONDS = 60


class Screen:
    """What was printed, for a test that waits for something in it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen = b""

    def __call__(self, data: bytes) -> None:
        with self._changed:
            self._seen += data
            self._changed.notify_all()

    def until(self, wanted: bytes) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted in self._seen, WAIT_SECONDS), self._seen
            return self._seen


@pytest.fixture(scope="module")
def key(shared_server: Server) -> str:
    return shared_server.create_key("published-terminals")


@pytest.fixture
def published(shared_server: Server, key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[podflare.Sandbox]:
    monkeypatch.setenv("PODFLARE_API_KEY", key)
    sandbox = podflare.Sandbox(host=shared_server.url)
    yield sandbox
    sandbox.close()
    podflare.close_default_client()


def test_a_session_from_its_beginning_to_its_end(published: podflare.Sandbox) -> None:
    screen = Screen()
    ends: list[int] = []
    session = published.pty.create(
        cmd="read line; echo got:$line:$A:$PWD; stty size; exit 7",
        cols=100,
        rows=30,
        env={"A": "b"},
        cwd="/tmp",
        on_data=screen,
        on_exit=ends.append,
    )
    session.send_input("hello\n")
    assert b"got:hello:b:/tmp" in screen.until(b"30 100")
    assert session.wait(WAIT_SECONDS) == 7
    assert ends == [7]
    (row,) = published.pty.list()
    assert (row.pty_id, row.exit_code) == (session.id, 7)


def test_a_program_with_arguments_is_resized_and_killed(published: podflare.Sandbox) -> None:
    screen = Screen()
    program = "trap 'stty size' WINCH; echo ready; while :; do read -t 1 line; done"
    session = published.pty.create(cmd=["bash", "-c", program], on_data=screen)
    screen.until(b"ready")
    session.resize(120, 40)
    screen.until(b"40 120")
    session.kill()
    assert session.wait(WAIT_SECONDS) > 128


def test_a_second_client_attaches(published: podflare.Sandbox) -> None:
    first, second = Screen(), Screen()
    session = published.pty.create(cmd="echo before; read line; echo after:$line", on_data=first)
    first.until(b"before")
    attached = published.pty.attach(session.id, on_data=second)
    second.until(b"before")
    attached.send_input(b"x\n")
    first.until(b"after:x")
    second.until(b"after:x")
    assert session.wait(WAIT_SECONDS) == attached.wait(WAIT_SECONDS) == 0
