"""Whatever a signal handler raises, and wherever: no sandbox and no snapshot is left that nobody could close."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ramet import Forks, Sandbox, Snapshot
from ramet.client.drivers import blocking
from ramet.client.operations import steps
from ramet.protocol import calls, fields
from ramet.protocol.frames import encode
from ramet.transport.embedded import default_engine
from tests.lifetime.interrupting import count_lines, interrupt_after, interrupt_at_line, wait_until
from tests.server.running import Server, running_server
from tests.server.talking import Client
from tests.walls.engines import fresh_engine


class Place(NamedTuple):
    """Where sandboxes are made, and how many there are."""

    url: str | None
    snapshots: Callable[[], int]

    def sandboxes(self) -> set[str]:
        return {row.id for row in Sandbox.list_all(url=self.url)}


@pytest.fixture(autouse=True)
def handles_that_are_forgotten_are_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as one:
        yield one


@pytest.fixture(params=["embedded", "http"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "embedded":
        with fresh_engine():  # that of other tests has templates made from snapshots
            yield Place(None, _embedded_snapshots)
        return
    server: Server = request.getfixturevalue("server")

    def snapshots() -> int:
        client = Client(server.port)
        try:
            return len(client.ask("GET", "/v1/snapshots").json["snapshots"])
        finally:
            client.close()

    yield Place(server.url, snapshots)


def _embedded_snapshots() -> int:
    asking = steps.ask(encode(calls.STATS, {}), lambda header: fields.whole(header, "snapshots"))
    return blocking.perform(default_engine(), asking)


Make = Callable[[Sandbox], Sandbox | Forks | Snapshot]


def _create(parent: Sandbox) -> Sandbox:
    engine = parent._created().engine
    url = engine.place if engine.remote else None
    return Sandbox(url=url if isinstance(url, str) else None)


class Making:
    """Makes something, again and again. What came through is kept: its finalizer is not what is looked at here."""

    def __init__(self, make: Make, parent: Sandbox) -> None:
        self._make = make
        self._parent = parent
        self._made: list[Sandbox | Forks | Snapshot] = []

    def __call__(self) -> None:
        self._made.append(self._make(self._parent))

    def close(self) -> None:
        while self._made:
            self._made.pop().close()


MAKES: dict[str, Make] = {
    "Sandbox()": _create,
    "fork": lambda parent: parent.fork(2),
    "snapshot": lambda parent: parent.snapshot(),
}


@pytest.mark.parametrize("name", MAKES)
def test_an_exception_at_any_line_of_a_call_that_makes_something_leaves_nothing(place: Place, name: str) -> None:
    make = MAKES[name]
    with Sandbox(url=place.url) as parent:
        parent.run_code("x = 1")
        making = Making(make, parent)
        making()
        lines = count_lines(making)
        assert lines > 30
        # Some of the beginning, and all of the end, where the answer has come and the handle is being made.
        aimed = sorted({*range(1, lines // 2, lines // 10), *range(lines - 20, lines + 1, 2)})
        for line in aimed:
            interrupt_at_line(line, making)
        making.close()
        wait_until(lambda: place.sandboxes() == {parent.id}, f"only the parent is left after {name}")
        wait_until(lambda: place.snapshots() == 0, "no snapshot is left")
        assert parent.run_code("x").value == "1"


@pytest.mark.deep("load")
@pytest.mark.parametrize("name", MAKES)
def test_an_exception_at_each_line_of_a_call_that_makes_something_leaves_nothing(place: Place, name: str) -> None:
    make = MAKES[name]
    with Sandbox(url=place.url) as parent:
        parent.run_code("x = 1")
        making = Making(make, parent)
        lines = count_lines(making)
        for line in range(1, lines + 20):
            interrupt_at_line(line, making)
            making.close()
        wait_until(lambda: place.sandboxes() == {parent.id}, f"only the parent is left after {name}")
        wait_until(lambda: place.snapshots() == 0, "no snapshot is left")
        assert parent.run_code("x").value == "1"


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("what", ["sandbox", "snapshot"])
def test_a_close_that_is_interrupted_closes_all_the_same(place: Place, what: str) -> None:
    def made() -> Callable[[], object]:
        return (Sandbox(url=place.url) if what == "sandbox" else parent.snapshot()).close

    with Sandbox(url=place.url) as parent:
        lines = count_lines(made())
        for line in range(1, lines + 1, 3):
            interrupt_at_line(line, made())
        wait_until(lambda: place.sandboxes() == {parent.id}, "only the parent is left")
        wait_until(lambda: place.snapshots() == 0, "no snapshot is left")
        assert parent.run_code("6 * 7").value == "42"


@pytest.mark.deep("load")
def test_a_thousand_signals_at_random_moments_leave_nothing(place: Place) -> None:
    chosen = random.Random(7)
    with Sandbox(url=place.url) as parent:
        parent.run_code("x = 1")
        usual: dict[str, float] = {}
        makings = {name: Making(make, parent) for name, make in MAKES.items()}
        for name, making in makings.items():
            began = time.perf_counter()
            making()
            usual[name] = time.perf_counter() - began
        interrupted = 0
        while interrupted < 1000:
            name = chosen.choice(list(MAKES))
            # Most of them near the end of the call.
            seconds = usual[name] * chosen.choice([chosen.random(), chosen.gauss(1, 0.1)])
            began = time.perf_counter()
            if interrupt_after(seconds, makings[name]):
                interrupted += 1
            else:
                usual[name] = 0.9 * usual[name] + 0.1 * (time.perf_counter() - began)
            makings[name].close()
        wait_until(lambda: place.sandboxes() == {parent.id}, "only the parent is left")
        wait_until(lambda: place.snapshots() == 0, "no snapshot is left")
        assert parent.run_code("x").value == "1"


def test_many_forgotten_handles_are_closed_though_the_engine_is_too_busy_to_hear_of_them(tmp_path: Path) -> None:
    """The engine's socket takes a few hundred words at a time; none of the rest may be lost."""
    engine = default_engine()
    with Sandbox() as parent:
        children = [child for _ in range(4) for child in parent.fork(8)]
        for number in range(2000):
            engine.forget(f"sbx_{number:032x}", calls.CLOSE)
        del children
        wait_until(lambda: {row.id for row in Sandbox.list_all()} == {parent.id}, "only the parent is left")
        assert parent.run_code("6 * 7").value == "42"
