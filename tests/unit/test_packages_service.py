"""The socket at which a sandbox asks for packages: bounded, and without a trace when it closes."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ramet.engine.packages.packages import NotAvailable, Packages
from ramet.engine.packages.requester import Requester
from ramet.engine.packages.requirements import Requirements
from ramet.engine.packages.service import PackageService
from ramet.engine.packages.trees import About, Kept, TreeMount
from ramet.engine.seams import Body
from ramet.protocol.network.specs import NetworkSpec
from ramet.protocol.values.specs import Interpreter, Limits, SandboxSpec, TemplateSpec
from tests.waiting import settle, until

REQUEST = b'{"requirements": ["thing"]}\n'
SPEC = SandboxSpec(
    TemplateSpec("python", Interpreter("/usr/bin/python3", "3.12.1", (), (), None), (), True),
    Limits(1 << 30, 100, 1.0, 1 << 30),
    network=NetworkSpec(open=True),
)


class ScriptedBody:
    """Its network is that of the test: a name there has no length that depends on where temporary files are."""

    def __init__(self) -> None:
        self.path = f"\0ramet-test-{os.getpid()}-{id(self)}"

    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen(backlog)
        return listener


class ScriptedPackages:
    """Has one tree, once it is let go on."""

    def __init__(self, folder: Path) -> None:
        self.kept = Kept(About({}, {"thing": "1"}), TreeMount(os.open(folder, os.O_PATH)), 1)
        self.go_on = asyncio.Event()
        self.asked = 0
        self.given_up = 0

    async def get(
        self,
        requester: Requester,
        wanted: Requirements,
        on_line: Callable[[str], None],
        may_install: Callable[[], bool],
    ) -> Kept:
        self.asked += 1
        if not may_install():
            raise NotAvailable("enough")
        on_line("Collecting thing")
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return self.kept


async def connected(body: ScriptedBody) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(line, body.path)
    except OSError:
        line.close()
        raise
    return line


def run(tmp_path: Path, scenario: Callable[[PackageService, ScriptedBody, ScriptedPackages], Any]) -> None:
    async def whole() -> None:
        body, packages = ScriptedBody(), ScriptedPackages(tmp_path)
        service = PackageService(cast(Packages, packages), cast(Body, body), lambda: Requester.of(SPEC))
        await service.open()
        await scenario(service, body, packages)
        service.close()
        service.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(whole())
    assert len(os.listdir("/proc/self/fd")) <= before


def test_whoever_asks_gets_lines_and_then_the_folder(tmp_path: Path) -> None:
    async def scenario(service: PackageService, body: ScriptedBody, packages: ScriptedPackages) -> None:
        packages.go_on.set()
        with await connected(body) as line:
            line.send(REQUEST)
            line.setblocking(True)
            line.settimeout(10)
            data, descriptors = b"", []
            while piece := await asyncio.to_thread(socket.recv_fds, line, 65536, 4):
                if not piece[0]:
                    break
                data += piece[0]
                descriptors += piece[1]
        assert json.loads(data.splitlines()[-1]) == {"given": {"base": {}, "added": {"thing": "1"}}}
        assert len(descriptors) == 1
        assert os.path.samefile(f"/proc/self/fd/{descriptors[0]}", tmp_path)
        os.close(descriptors[0])
        # It may hold on to it, so it is lent for as long as the sandbox lives.
        assert cast(Body, body) in packages.kept.borrowers
        service.close()  # it may go on under another id
        assert cast(Body, body) in packages.kept.borrowers

    run(tmp_path, scenario)


def test_one_installation_at_a_time_and_given_up_when_whoever_asked_hangs_up(tmp_path: Path) -> None:
    async def scenario(service: PackageService, body: ScriptedBody, packages: ScriptedPackages) -> None:
        first, second = await connected(body), await connected(body)
        first.send(REQUEST)
        await until(lambda: packages.asked == 1)
        second.send(REQUEST)
        first.close()
        await until(lambda: packages.asked == 2)
        assert packages.given_up == 1
        second.close()
        await until(lambda: packages.given_up == 2)

    run(tmp_path, scenario)


def test_connections_beyond_the_bound_wait_until_others_end(tmp_path: Path) -> None:
    async def scenario(service: PackageService, body: ScriptedBody, packages: ScriptedPackages) -> None:
        packages.go_on.set()
        silent = [await connected(body) for _ in range(8)]
        await until(lambda: "8 links" in repr(service))
        late = await connected(body)
        late.send(REQUEST)
        await settle()
        assert packages.asked == 0
        silent[0].close()
        await until(lambda: packages.asked == 1)
        for line in (*silent, late):
            line.close()
        await until(lambda: "0 links" in repr(service))

    run(tmp_path, scenario)


@pytest.mark.parametrize("raw", [b"x" * 100_000, b"\n", b"{}\n", b'{"requirements": ["-e ."]}\n'])
def test_what_is_not_understood_reaches_nobody(tmp_path: Path, raw: bytes) -> None:
    async def scenario(service: PackageService, body: ScriptedBody, packages: ScriptedPackages) -> None:
        with await connected(body) as line:
            try:
                await asyncio.get_running_loop().sock_sendall(line, raw)
                await asyncio.get_running_loop().sock_recv(line, 1000)
            except ConnectionError:
                pass
        assert packages.asked == 0

    run(tmp_path, scenario)


def test_closing_hangs_up_on_whoever_waits_and_frees_the_name(tmp_path: Path) -> None:
    async def scenario(service: PackageService, body: ScriptedBody, packages: ScriptedPackages) -> None:
        line = await connected(body)
        line.send(REQUEST)
        await until(lambda: packages.asked == 1)
        service.close()
        with pytest.raises(ConnectionRefusedError):
            await connected(body)
        async with asyncio.timeout(10):
            while await asyncio.get_running_loop().sock_recv(line, 1000):
                pass
        assert packages.given_up == 1
        line.close()

    run(tmp_path, scenario)


def test_an_answer_that_nobody_reads_keeps_its_place(tmp_path: Path) -> None:
    """The kernel counts descriptors in unread answers against those that the engine itself may send."""

    async def scenario(service: PackageService, body: ScriptedBody, packages: ScriptedPackages) -> None:
        packages.go_on.set()
        lines = [await connected(body) for _ in range(9)]
        for line in lines:
            line.send(REQUEST)
        await until(lambda: packages.asked == 8 and all(select.select(lines[:8], [], [], 0)[0]))
        lines[0].shutdown(socket.SHUT_RDWR)  # is not as good as reading it
        await settle()
        assert ("8 links" in repr(service), packages.asked) == (True, 8)
        lines[0].close()
        await until(lambda: packages.asked == 9)
        for line in lines[1:]:
            line.close()
        await until(lambda: "0 links" in repr(service))

    run(tmp_path, scenario)


def test_whoever_says_more_than_the_request_is_hung_up_on(tmp_path: Path) -> None:
    async def scenario(service: PackageService, body: ScriptedBody, packages: ScriptedPackages) -> None:
        with await connected(body) as line:
            line.send(REQUEST)
            await until(lambda: packages.asked == 1)
            line.send(b"more")
            await until(lambda: "0 links" in repr(service))
        assert packages.given_up == 1

    run(tmp_path, scenario)
