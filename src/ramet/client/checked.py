"""The operations of one sandbox, with their arguments checked at once, before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from os import urandom

from ramet.client import network_operations, operations
from ramet.client.network import check_port, check_rules
from ramet.client.network_operations import NetworkState
from ramet.client.open_streams import check_no_unread_stream
from ramet.client.operations import Forked, OnDisconnect, Operation, Record, Returned
from ramet.client.sources import SMALL_BYTES, as_bytes
from ramet.client.tools.current_call import check_not_in_its_way
from ramet.client.tools.tool import Toolset
from ramet.protocol import checks
from ramet.protocol.forks import Diff
from ramet.protocol.refusing import must, wrong_argument
from ramet.protocol.replays import ReplayEvent
from ramet.protocol.results import FileInfo, Result, SandboxInfo
from ramet.protocol.specs import Lifetime
from ramet.protocol.values import check_name

_EXECUTION = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Checked:
    """Both faces of a sandbox ask here what to do, so that they cannot differ."""

    def __init__(self, sandbox_id: str, recorded: bool = False) -> None:
        self.sandbox_id = sandbox_id
        self._recorded = recorded  # cells get an id, under which the engine keeps their results
        # Ids of the cells under way, in the order in which they were sent. Each has a connection of its own: the engine
        # is told which one came before, so that it can run them in this order, however they arrive.
        self._under_way: list[str] = []

    def run(
        self,
        code: str,
        language: str,
        timeout: float | None,
        on_disconnect: OnDisconnect = "keep",
        tools: bool = False,
    ) -> Operation[Result]:
        cell = _cell(code, language, timeout)
        _check_may_wait(self.sandbox_id)
        record = self._record(on_disconnect)
        if record is None:
            return operations.run(self.sandbox_id, cell, language, timeout, None, tools)
        return self._in_line(
            record, lambda record: operations.run(self.sandbox_id, cell, language, timeout, record, tools)
        )

    def stream(
        self,
        code: str,
        language: str,
        timeout: float | None,
        on_disconnect: OnDisconnect = "keep",
        tools: bool = False,
    ) -> Operation[None]:
        cell = _cell(code, language, timeout)
        check_not_in_its_way(self.sandbox_id)
        record = self._record(on_disconnect)
        if record is None:
            return operations.stream(self.sandbox_id, cell, language, timeout, None, tools)
        return self._in_line(
            record, lambda record: operations.stream(self.sandbox_id, cell, language, timeout, record, tools)
        )

    def _in_line(self, record: Record, cell: Callable[[Record], Operation[Returned]]) -> Operation[Returned]:
        """From its first step on, which is when it is sent."""
        before = self._under_way[-1:]
        self._under_way.append(record.execution)
        try:
            return (yield from cell(record._replace(after=before[0]) if before else record))
        finally:
            self._under_way.remove(record.execution)

    def _record(self, on_disconnect: OnDisconnect) -> Record | None:
        if on_disconnect not in ("keep", "interrupt"):
            raise must("on_disconnect", "be 'keep' or 'interrupt'", on_disconnect)
        return Record(f"exe_{urandom(16).hex()}", on_disconnect) if self._recorded else None

    def get_value(self, name: str) -> Operation[bytes]:
        known = check_name(name)
        _check_may_wait(self.sandbox_id)
        return operations.get_value(self.sandbox_id, known)

    def set_value(self, name: str, path: str | None, data: bytes) -> Operation[None]:
        _check_may_wait(self.sandbox_id)
        return operations.set_value(self.sandbox_id, name, path, data)

    def set_tools(self, tools: Toolset) -> Operation[None]:
        return operations.set_tools(self.sandbox_id, tools.data)

    def result(self, execution_id: str, wait: bool) -> Operation[Result | None]:
        checks.check_flag(wait, "wait")
        if not isinstance(execution_id, str) or not _EXECUTION.fullmatch(execution_id):
            raise must("execution_id", "be the id of an execution, such as Result.execution_id", execution_id)
        return operations.fetch(self.sandbox_id, execution_id, wait)

    def replay(self) -> Operation[list[ReplayEvent]]:
        return operations.replay(self.sandbox_id)

    def extend(self, timeout_seconds: float | None, idle_timeout_seconds: float | None) -> Operation[None]:
        if timeout_seconds is None and idle_timeout_seconds is None:
            raise wrong_argument("timeout_seconds", "timeout_seconds or idle_timeout_seconds must be given")
        checks.check_lifetime(Lifetime(timeout_seconds, idle_timeout_seconds))
        return operations.extend(self.sandbox_id, timeout_seconds, idle_timeout_seconds)

    def interrupt(self) -> Operation[bool]:
        return operations.interrupt(self.sandbox_id)

    def info(self) -> Operation[SandboxInfo]:
        return operations.info(self.sandbox_id)

    def close(self) -> Operation[None]:
        return operations.close(self.sandbox_id)

    def network(self) -> Operation[NetworkState]:
        return network_operations.look(self.sandbox_id)

    def change_network(self, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> Operation[None]:
        allowed, denied = check_rules(allow, "allow"), check_rules(deny, "deny")
        if not allowed and not denied:
            raise wrong_argument(
                "rules", "at least one rule must be given", hint="allow('data.example', '*.example:443')"
            )
        return network_operations.change(self.sandbox_id, allowed, denied)

    def expose(self, port: int, place: object) -> Operation[str]:
        return network_operations.expose(self.sandbox_id, check_port(port), place)

    def unexpose(self, port: int) -> Operation[None]:
        return network_operations.unexpose(self.sandbox_id, check_port(port))

    def fork(self, n: int, reseed: bool, inherit_secrets: bool) -> Operation[Forked]:
        checks.check_count(n)
        checks.check_flag(reseed, "reseed")
        checks.check_flag(inherit_secrets, "inherit_secrets")
        _check_may_wait(self.sandbox_id)
        return operations.fork(self.sandbox_id, n, reseed, inherit_secrets)

    def snapshot(self) -> Operation[str]:
        _check_may_wait(self.sandbox_id)
        return operations.snapshot(self.sandbox_id)

    def diff(self, other: Checked, paths: Collection[str] | None) -> Operation[Diff]:
        compared = checks.check_compared_paths(paths)
        for one in (self, other):
            _check_may_wait(one.sandbox_id)
        return operations.diff(self.sandbox_id, {"other": other.sandbox_id}, compared)

    def diff_since(self, snapshot_id: str, paths: Collection[str] | None) -> Operation[Diff]:
        compared = checks.check_compared_paths(paths)
        _check_may_wait(self.sandbox_id)
        return operations.diff(self.sandbox_id, {"snapshot": snapshot_id}, compared)

    def merge_into(self, winner: Checked) -> Operation[None]:
        if winner.sandbox_id == self.sandbox_id:
            raise wrong_argument("winner", "winner must be another sandbox, got the sandbox itself")
        for one in (self, winner):
            _check_may_wait(one.sandbox_id)
        return operations.merge(self.sandbox_id, winner.sandbox_id)

    def restore(self, snapshot_id: str) -> Operation[None]:
        _check_may_wait(self.sandbox_id)
        return operations.restore(self.sandbox_id, snapshot_id)

    def read(self, path: str) -> Operation[bytes]:
        checks.check_path(path)
        return operations.read(self.sandbox_id, path)

    def read_stream(self, path: str, chunk: int) -> Operation[None]:
        checks.check_path(path)
        checks.check_chunk(chunk)
        return operations.read_stream(self.sandbox_id, path, chunk)

    def write(self, path: str, data: object) -> Operation[None]:
        """What is small and there travels with the request; anything else is pulled."""
        checks.check_path(path)
        present = as_bytes(data)
        if present is not None and len(present) <= SMALL_BYTES:
            return operations.write(self.sandbox_id, path, present)
        return operations.write_stream(self.sandbox_id, path)

    def list(self, path: str) -> Operation[list[FileInfo]]:
        checks.check_path(path)
        return operations.list_folder(self.sandbox_id, path)

    def stat(self, path: str) -> Operation[FileInfo]:
        checks.check_path(path)
        return operations.stat(self.sandbox_id, path)

    def exists(self, path: str) -> Operation[bool]:
        checks.check_path(path)
        return operations.exists(self.sandbox_id, path)

    def mkdir(self, path: str, parents: bool) -> Operation[None]:
        checks.check_path(path)
        return operations.make_folder(self.sandbox_id, path, bool(parents))

    def remove(self, path: str, recursive: bool) -> Operation[None]:
        checks.check_path(path)
        return operations.remove(self.sandbox_id, path, bool(recursive))

    def rename(self, path: str, new_path: str) -> Operation[None]:
        checks.check_path(path)
        checks.check_path(new_path, "new_path")
        return operations.rename(self.sandbox_id, path, new_path)


def _check_may_wait(sandbox_id: str) -> None:
    """For what takes its turn in the sandbox's queue. A stream asks this when it begins, not when it is made."""
    check_not_in_its_way(sandbox_id)
    check_no_unread_stream(sandbox_id)


def _cell(code: str, language: str, timeout: float | None) -> bytes:
    checks.check_language(language)
    checks.check_timeout(timeout)
    return checks.check_code(code)
