"""From a host to a connection: rules, one look at the name, rules again; with a resolver that the tests answer for."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence

import pytest
import uvloop

from ramet.network.connecting.host_addresses import HostAddresses, own_addresses
from ramet.network.connecting.resolver import Lookups, NotResolved, Resolver
from ramet.network.connecting.targets import OutgoingConnection, TargetRefused, reach
from ramet.network.peers import SandboxPeer
from ramet.network.reports import Reports
from ramet.protocol.network.rules import Address
from ramet.protocol.network.specs import NetworkSpec
from tests.network.proxies import NAME, WAIT_SECONDS, spec_of
from tests.network.servers import Server
from tests.waiting import settle

Messages = list[dict[str, object]]


class Answers:
    """A resolver that gives one answer after the other, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, name: str) -> list[Address]:
        self.asked.append(name)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ipaddress.ip_address(text) for text in answer]


def within(
    spec: NetworkSpec,
    ask: Callable[[str], Sequence[Address]],
    work: Callable[[SandboxPeer], Coroutine[None, None, None]],
) -> Messages:
    """Do something as a sandbox; what the engine would have been told of it."""
    said: Messages = []

    def take(messages: Sequence[dict[str, object]], now: bool) -> bool:
        said.extend(messages)
        return True

    async def run() -> None:
        resolver = Resolver(ask)
        reports = Reports(1, take)
        peer = SandboxPeer(1, spec, (), HostAddresses(), reports, Lookups(resolver))
        async with asyncio.timeout(WAIT_SECONDS):
            await work(peer)
        peer.close()
        resolver.close()

    uvloop.run(run())
    return said


async def refusal(peer: SandboxPeer, host: str, port: int) -> TargetRefused:
    with pytest.raises(TargetRefused) as caught:
        await reach(peer, host, port, "connect")
    return caught.value


def test_a_name_is_looked_up_once_and_that_answer_is_used(echo_server: Server) -> None:
    """Rebinding: a name that leads to an allowed address first and to another one a moment later."""
    answers = Answers(["127.0.0.1"], ["127.0.0.2"])
    found: list[OutgoingConnection] = []

    async def work(peer: SandboxPeer) -> None:
        found.append(await reach(peer, NAME, echo_server.port, "connect"))

    within(spec_of(echo_server.rule(NAME), echo_server.rule("127.0.0.1")), answers, work)
    assert answers.asked == [NAME]
    assert str(found[0].address) == "127.0.0.1"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "198.18.0.1", "168.63.129.16", "::1", "::", "fe80::1", "fd00::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "::127.0.0.1", "2001:0:a00:1::",
    ],
)  # fmt: skip
@pytest.mark.parametrize("open", [True, False])
def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(address: str, open: bool) -> None:
    async def work(peer: SandboxPeer) -> None:
        refused = await refusal(peer, NAME, 443)
        assert refused.status == "rule"
        assert NAME in refused.reason

    said = within(spec_of(NAME, open=open), Answers([address]), work)
    assert [message["allowed"] for message in said] == [False]


def test_of_several_addresses_only_allowed_ones_are_tried(echo_server: Server) -> None:
    async def work(peer: SandboxPeer) -> None:
        target = await reach(peer, NAME, echo_server.port, "connect")
        assert str(target.address) == "127.0.0.1"

    rules = (echo_server.rule(NAME), echo_server.rule("127.0.0.1"))
    within(spec_of(*rules), Answers(["10.0.0.1", "::1", "127.0.0.1"]), work)


def test_the_next_address_is_tried_when_one_does_not_answer(echo_server: Server) -> None:
    async def work(peer: SandboxPeer) -> None:
        target = await reach(peer, NAME, echo_server.port, "connect")
        assert str(target.address) == "127.0.0.1"

    rules = (echo_server.rule(NAME), f"127.0.0.0/8:{echo_server.port}")
    within(spec_of(*rules), Answers(["127.0.0.2", "127.0.0.1"]), work)


def test_a_denied_address_is_denied_under_every_name(echo_server: Server) -> None:
    async def work(peer: SandboxPeer) -> None:
        assert (await refusal(peer, NAME, echo_server.port)).status == "rule"

    deny = [echo_server.rule("127.0.0.1")]
    spec = spec_of(echo_server.rule(NAME), deny=deny, addresses={NAME: "127.0.0.1"})
    said = within(spec, Answers([]), work)
    assert said[0]["reason"] == f"127.0.0.1 port {echo_server.port} is denied by the rule {deny[0]!r}"


def test_a_name_that_no_rule_allows_is_never_looked_up() -> None:
    answers = Answers(["127.0.0.1"])

    async def work(peer: SandboxPeer) -> None:
        for host in ("other.example", f"x.{NAME}", "localhost"):
            await refusal(peer, host, 443)

    within(spec_of(NAME), answers, work)
    assert answers.asked == []


def test_rules_that_change_while_a_name_is_looked_up_count(echo_server: Server) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def ask(name: str) -> list[Address]:
        asked.set()
        go_on.wait(WAIT_SECONDS)
        return [ipaddress.ip_address("127.0.0.1")]

    async def work(peer: SandboxPeer) -> None:
        reaching = asyncio.create_task(refusal(peer, NAME, echo_server.port))
        await asyncio.to_thread(asked.wait, WAIT_SECONDS)
        peer.change(spec_of(echo_server.rule("127.0.0.1")), ())
        go_on.set()
        assert (await reaching).status == "rule"
        assert not peer.targets

    within(spec_of(echo_server.rule(NAME), echo_server.rule("127.0.0.1")), ask, work)


def test_addresses_of_the_host_itself_are_not_public() -> None:
    own = [address for address in own_addresses() if not address.is_loopback]
    assert ipaddress.ip_address("127.0.0.1") in HostAddresses()
    for address in own:
        assert address in HostAddresses()


def test_lookups_of_one_sandbox_leave_threads_for_another() -> None:
    released = threading.Event()

    def ask(name: str) -> list[Address]:
        if name.startswith("stuck"):
            released.wait(WAIT_SECONDS)
        return [ipaddress.ip_address("192.0.2.1")]

    async def run() -> None:
        resolver = Resolver(ask)
        hostile, other = Lookups(resolver), Lookups(resolver)
        stuck = [asyncio.create_task(hostile.addresses(f"stuck{number}.example")) for number in range(250)]
        await settle()  # as many as may be have taken their places
        async with asyncio.timeout(WAIT_SECONDS):
            assert await other.addresses(NAME)
        for _ in range(10):
            stuck.append(asyncio.create_task(hostile.addresses("stuck.example")))
        with pytest.raises(NotResolved, match="too many names"):
            await stuck[-1]
        for task in stuck:
            task.cancel()
        released.set()
        await asyncio.gather(*stuck, return_exceptions=True)
        resolver.close()

    uvloop.run(run())


class _Stuck:
    """A resolver whose names beginning with "stuck" are not answered for until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.resolver = Resolver(self._ask)
        self._tasks: list[asyncio.Task[list[Address]]] = []

    def _ask(self, name: str) -> list[Address]:
        if name.startswith("stuck"):
            self.released.wait(WAIT_SECONDS)
        return [ipaddress.ip_address("192.0.2.1")]

    async def flood(self, owner: str, sandboxes: int) -> None:
        """Each sandbox asks for as many names as it may, and more."""
        for number in range(sandboxes):
            lookups = Lookups(self.resolver, owner)
            self._tasks += [
                asyncio.create_task(lookups.addresses(f"stuck{number}-{name}.example")) for name in range(30)
            ]
            await asyncio.sleep(0)

    async def assert_answers(self, owner: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            assert await Lookups(self.resolver, owner).addresses(NAME)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.released.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def assert_all_back(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while self.resolver._of_owners or self.resolver._of_sandboxes:
                await asyncio.sleep(0.01)
        assert not self.resolver._waiting
        self.resolver.close()


@pytest.mark.deep("load")
def test_lookups_of_many_sandboxes_of_one_owner_leave_threads_for_others_and_for_its_own() -> None:
    async def run() -> None:
        stuck = _Stuck()
        await stuck.flood("hostile", 8)
        await stuck.assert_answers("other")
        await stuck.assert_answers("hostile")  # another sandbox of the same owner
        await stuck.flood("hostile", 100)
        await stuck.assert_answers("other")
        await stuck.flood("hostile too", 100)
        await stuck.flood("and this one", 100)
        await stuck.assert_answers("other")
        await stuck.end()
        await stuck.assert_answers("hostile")
        await stuck.assert_all_back()

    uvloop.run(run())


def test_a_lookup_that_nobody_waits_for_any_more_takes_no_thread_from_the_next() -> None:
    """Also if its turn came in the very moment in which it was given up."""

    async def run() -> None:
        stuck = _Stuck()
        lookups = Lookups(stuck.resolver, "owner")
        for rounds in range(200):
            tasks = [asyncio.create_task(lookups.addresses(f"{name}.example")) for name in range(20)]
            for _ in range(rounds % 5):
                await asyncio.sleep(0)
            for task in tasks[rounds % 3 :: 2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await stuck.assert_answers("owner")
        await stuck.end()
        await stuck.assert_all_back()

    uvloop.run(run())


def test_a_name_that_does_not_exist_is_told_apart_from_a_resolver_that_is_not_there() -> None:
    def ask(name: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME if name == NAME else socket.EAI_AGAIN, "no")

    async def run() -> None:
        resolver = Resolver(ask)
        lookups = Lookups(resolver)
        for name, missing in ((NAME, True), ("other.example", False)):
            with pytest.raises(NotResolved) as caught:
                await lookups.addresses(name)
            assert caught.value.missing == missing
        resolver.close()

    uvloop.run(run())
