"""The engine's side of the proxy: who holds it, what a new one is told, what is believed of what it says."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ramet.engine.network import proxy_sockets
from ramet.engine.network.held_secrets import HeldSecret
from ramet.engine.network.network import EngineNetwork
from ramet.engine.network.proxy import ProxyHandle
from ramet.engine.network.proxy_sockets import PortTaken, ProxySockets
from ramet.engine.settings import Settings
from ramet.errors import HostNotCapable, ProtocolError, RametError
from ramet.network.process import Message, ProxyProcess
from ramet.protocol.network.specs import NetworkSpec, SecretSpec, read_rules
from tests.unit.scripted import ScriptedBody
from tests.waiting import until

_SPEC = NetworkSpec(allow=read_rules(["data.example"]))
_SECRET = SecretSpec("KEY", "s3cret-of-the-owner", read_rules(["data.example"]))


class ScriptedProcess:
    """Stands in for a process: remembers what it was told."""

    def __init__(self, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        self.say = on_message
        self.die = on_end
        self.heard: list[dict[str, Any]] = []
        self.given: list[int] = []
        self.closed = False
        self.killed = False
        self.silent = False
        self.backlog = 0
        self.pid = 1
        self.missing_walls: tuple[str, ...] = ()

    def kill(self) -> None:
        self.killed = True
        self.die()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self.heard.append(dict(message))
        self.given.append(len(descriptors))
        if message["do"] == "flush" and not self.silent:
            self.say({"say": "flushed", "ticket": message["ticket"]})

    def close(self) -> None:
        self.closed = True

    async def ended(self) -> None:
        pass

    def done(self, what: str) -> list[dict[str, Any]]:
        return [message for message in self.heard if message["do"] == what]

    def descriptors(self, what: str) -> list[int]:
        """How many came with each message of this kind. Questions whether it still serves may come at any time."""
        return [count for message, count in zip(self.heard, self.given, strict=True) if message["do"] == what]


class Scripted:
    """A proxy whose processes are scripted."""

    def __init__(self) -> None:
        self.processes: list[ScriptedProcess] = []
        self.networks: list[EngineNetwork] = []
        self.failing = 0
        settings = Settings(proxy_idle_seconds=0.02, proxy_again_seconds=0.001)
        self.proxy = ProxyHandle(settings, self._start, ask_seconds=0.01)

    async def make(self, spec: NetworkSpec = _SPEC) -> EngineNetwork:
        self.networks.append(await EngineNetwork.make(self.proxy, spec, ()))
        return self.networks[-1]

    async def _start(self, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> ProxyProcess:
        if self.failing:
            self.failing -= 1
            raise RametError("scripted to fail")
        self.processes.append(ScriptedProcess(on_message, on_end))
        return cast(ProxyProcess, self.processes[-1])


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    made = Scripted()
    yield made
    for network in made.networks:
        network.close()
    await made.proxy.close()


@pytest.fixture
async def body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedBody]:
    async def netlink(family: int) -> socket.socket:
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    made = ScriptedBody(tmp_path)
    monkeypatch.setattr(made, "netlink", netlink)
    monkeypatch.setattr(proxy_sockets, "lead_away", lambda *_: None)
    yield made
    await made.close()


async def _opened(scripted: Scripted, body: ScriptedBody) -> EngineNetwork:
    network = await scripted.make()
    network.begin(body)
    await network.opened()
    return network


async def test_what_the_kernel_cannot_hold_the_proxy_from_is_told(scripted: Scripted, body: ScriptedBody) -> None:
    network = await _opened(scripted, body)
    assert "held from" not in network.summary()
    scripted.processes[0].missing_walls = ("signals (Linux 6.12)",)
    assert network.summary().endswith("; the proxy itself is not held from: signals (Linux 6.12)")


async def test_the_process_is_started_once_and_ends_after_the_last_that_held_it(
    scripted: Scripted, body: ScriptedBody
) -> None:
    first = await scripted.make()
    second = await scripted.make()
    (process,) = scripted.processes
    first.close()
    first.close()
    second.close()
    assert not process.closed
    third = await scripted.make()
    assert scripted.processes == [process]
    third.close()
    await until(lambda: process.closed)
    await scripted.make()
    assert len(scripted.processes) == 2


async def test_a_process_that_cannot_be_started_is_told_to_whoever_asks_and_tried_again_for_the_next(
    scripted: Scripted,
) -> None:
    scripted.failing = 1
    with pytest.raises(RametError, match="scripted to fail"):
        await scripted.make()
    await scripted.make()


async def test_a_new_process_is_told_all_that_the_one_before_knew(scripted: Scripted, body: ScriptedBody) -> None:
    network = await _opened(scripted, body)
    (told,) = scripted.processes[0].done("open")
    assert told["listeners"] == ["proxy", "transparent", "names"]
    assert scripted.processes[0].descriptors("open") == [3]
    tried = {"kind": "http", "host": "data.example", "port": 80, "allowed": True, "rule": None, "open": True}
    scripted.processes[0].say({"say": "tried", "id": told["id"], "entry": 1, "time": 1.0, **tried})
    counted = {"entry": 1, "sent": 3, "received": 4, "open": True, "allowed": True, "reason": None}
    scripted.processes[0].say({"say": "counted", "id": told["id"], **counted})
    scripted.failing = 3
    scripted.processes[0].die()
    assert [attempt.open for attempt in network.log.attempts()] == [False]
    await until(lambda: len(scripted.processes) == 2)
    (again,) = scripted.processes[1].done("open")
    assert again["id"] != told["id"]
    assert again["used_bytes"] == 7
    assert scripted.processes[1].descriptors("open") == [3]
    network.become(NetworkSpec())
    assert scripted.processes[1].done("change")[0]["network"]["allow"] == []
    network.close()
    assert scripted.processes[1].done("close")[0]["id"] == again["id"]


async def test_what_a_process_says_of_what_it_was_told_to_close_is_still_heard(
    scripted: Scripted, body: ScriptedBody
) -> None:
    network = await _opened(scripted, body)
    (process,) = scripted.processes
    (told,) = process.done("open")
    tried = {"kind": "dns", "host": "a.example", "port": 53, "allowed": False, "rule": None, "open": False}

    def send(message: Message, descriptors: Sequence[int] = ()) -> None:
        if message["do"] == "close":
            process.say({"say": "tried", "id": told["id"], "entry": 1, "time": 1.0, **tried})

    process.send = send  # type: ignore[method-assign]
    network.close()
    assert [attempt.host for attempt in network.log.attempts()] == ["a.example"]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"say": 1},
        {"say": "hello"},
        {"say": "flushed"},
        {"say": "tried", "id": "1"},
        {"say": "exposed"},
        {"say": "dropped", "id": None, "count": -1},  # None stands for the id that it was told
    ],
)
async def test_what_no_proxy_says_is_an_error_of_its_protocol(
    scripted: Scripted, body: ScriptedBody, message: dict[str, Any]
) -> None:
    await _opened(scripted, body)
    (told,) = scripted.processes[0].done("open")
    if message.get("id", "") is None:
        message = {**message, "id": told["id"]}
    with pytest.raises(ProtocolError):
        scripted.processes[0].say(message)


async def test_what_it_says_of_strangers_is_nothing_to_anybody(scripted: Scripted) -> None:
    network = await scripted.make()
    (process,) = scripted.processes
    for message in ({"say": "tried", "id": 99}, {"say": "more", "exposure": 99}, {"say": "flushed", "ticket": 99}):
        process.say(message)
    assert network.log.attempts() == []
    assert not process.killed


async def test_one_that_is_silent_is_ended_and_the_next_is_told_everything(
    scripted: Scripted, body: ScriptedBody
) -> None:
    """Whatever strangers have made it do, it does for all sandboxes of the engine, and nobody else would notice."""
    await _opened(scripted, body)
    (first,) = scripted.processes
    await until(lambda: len(first.done("flush")) > 5)
    assert not first.killed
    first.silent = True
    await until(lambda: len(scripted.processes) == 2)
    assert first.killed
    assert len(scripted.processes[1].done("open")) == 1


async def test_one_that_does_not_read_is_ended_before_the_engine_has_no_descriptors_left(
    scripted: Scripted, body: ScriptedBody
) -> None:
    network = await _opened(scripted, body)
    (first,) = scripted.processes
    first.backlog = 1_000_000
    assert scripted.proxy.behind
    network.become(NetworkSpec())
    assert first.killed
    await until(lambda: len(scripted.processes) == 2)
    assert scripted.processes[1].done("open")[0]["network"]["allow"] == []


# Doors


async def test_a_port_that_is_taken_closes_the_network_and_says_which(scripted: Scripted, body: ScriptedBody) -> None:
    body.taken_ports = {3129}
    with pytest.raises(PortTaken, match="3129"):
        await ProxySockets.open(body)
    network = await _opened(scripted, body)
    assert network.ready
    assert "port 3129" in (network.closed or "")
    assert "port 3129" in network.summary()
    assert scripted.processes[0].done("open") == []
    (told,) = network.log.attempts()
    assert (told.port, told.allowed, told.reason) == (3129, False, network.closed)


async def test_without_packet_rules_there_is_no_raw_tcp_and_the_rest_works(
    scripted: Scripted, body: ScriptedBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "add packet rules: Operation not supported")

    monkeypatch.setattr(proxy_sockets, "lead_away", refuse)
    network = await _opened(scripted, body)
    assert "nf_tables" in (network.no_raw_tcp or "")
    assert "Operation not supported" in network.summary()
    assert scripted.processes[0].done("open")[0]["listeners"] == ["proxy", "names"]


async def test_what_fails_otherwise_is_an_error_for_who_waits_and_tried_again(
    scripted: Scripted, body: ScriptedBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(port: int, backlog: int) -> socket.socket | None:
        raise RametError("no descriptors left")

    network = await scripted.make()
    with monkeypatch.context() as patch:
        patch.setattr(body, "listen_tcp", nothing)
        network.begin(body)
        with pytest.raises(RametError, match="no descriptors left"):
            await network.opened()
        assert not network.ready
    await network.opened()
    assert network.ready


async def test_one_that_is_closed_before_it_began_leaves_no_socket_open(scripted: Scripted, body: ScriptedBody) -> None:
    opened = await ProxySockets.open(body)
    sockets = list(opened.sockets.values())
    network = await scripted.make()
    network.begin(body, opened)
    network.close()
    assert [each.fileno() for each in sockets] == [-1, -1, -1]


async def test_another_body_gets_sockets_of_its_own_and_what_was_used_goes_on(
    scripted: Scripted, body: ScriptedBody, tmp_path: Path
) -> None:
    network = await _opened(scripted, body)
    network.log.used_bytes = 50
    network.renew(body)
    await network.opened()
    (process,) = scripted.processes
    first, second = process.done("open")
    assert process.done("close")[0]["id"] == first["id"]
    assert second["used_bytes"] == 50


async def test_the_sockets_of_one_that_is_merged_go_to_the_one_that_goes_on(
    scripted: Scripted, body: ScriptedBody
) -> None:
    winner = await _opened(scripted, body)
    inodes = {os.fstat(each.fileno()).st_ino for each in winner._peer.proxy_sockets.sockets.values()}  # type: ignore[union-attr]
    parent = await scripted.make(NetworkSpec())
    parent.renew(body, winner)
    await parent.opened()
    kept = {os.fstat(each.fileno()).st_ino for each in parent._peer.proxy_sockets.sockets.values()}  # type: ignore[union-attr]
    assert kept == inodes
    assert scripted.processes[0].done("open")[1]["network"]["allow"] == []


# Secrets


def test_a_secret_hides_in_every_repr() -> None:
    held = HeldSecret.of(_SECRET)
    for shown in (held, held.trace(), held.for_copy(), _SECRET):
        assert _SECRET.value not in repr(shown)


def test_placeholders_of_a_copy_are_its_own_and_those_of_before_go_on() -> None:
    held = HeldSecret.of(_SECRET)
    copy = held.for_copy()
    assert copy.placeholder != held.placeholder
    assert copy.header()["placeholders"] == [copy.placeholder, held.placeholder]
    again = HeldSecret.of(_SECRET, [copy.trace()])
    assert again.older == (copy.placeholder, held.placeholder)
    other = SecretSpec("KEY", "another", _SECRET.hosts)
    assert HeldSecret.of(other, [copy.trace()]).older == ()
    assert HeldSecret.of(other).knowing({}).older == ()


async def test_a_proxy_that_takes_too_long_is_no_fault_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs do without sandboxes where the host cannot have any; a busy machine is another matter."""
    monkeypatch.setattr("ramet.network.process._START_SECONDS", 0.0)
    with pytest.raises(RametError, match="the machine is busy") as raised:
        await ProxyProcess.start(lambda _: None, lambda: None)
    assert not isinstance(raised.value, HostNotCapable)
