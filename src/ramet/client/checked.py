"""The operations of one sandbox, with their arguments checked at once, before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from os import urandom

from ramet.client import network_operations, operations
from ramet.client.network import check_port, check_rules
from ramet.client.network_operations import NetworkState
from ramet.client.operations import Forked, OnDisconnect, Operation, Record
from ramet.client.sources import SMALL_BYTES, as_bytes
from ramet.client.tools.current_call import check_not_in_its_way
from ramet.client.tools.tool import Toolset
from ramet.protocol import checks
from ramet.protocol.forks import Diff
from ramet.protocol.refusing import invalid
from ramet.protocol.replays import ReplayEvent
from ramet.protocol.results import FileInfo, Result, SandboxInfo
from ramet.protocol.specs import Lifetime

_EXECUTION = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Checked:
    """Both faces of a sandbox ask here what to do, so that they cannot differ."""

    def __init__(self, sandbox_id: str, recorded: bool = False) -> None:
        self.sandbox_id = sandbox_id
        self._recorded = recorded  # cells get an id, under which the engine keeps their results

    def run(
        self,
        code: str,
        language: str,
        timeout: float | None,
        on_disconnect: OnDisconnect = "keep",
        tools: bool = False,
    ) -> Operation[Result]:
        cell = _cell(code, language, timeout)
        check_not_in_its_way(self.sandbox_id)
        return operations.run(self.sandbox_id, cell, language, timeout, self._record(on_disconnect), tools)

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
        return operations.stream(self.sandbox_id, cell, language, timeout, self._record(on_disconnect), tools)

    def _record(self, on_disconnect: OnDisconnect) -> Record | None:
        if on_disconnect not in ("keep", "interrupt"):
            raise invalid("on_disconnect", f"{on_disconnect!r:.100} is unknown", "'keep' or 'interrupt'")
        return Record(f"exe_{urandom(16).hex()}", on_disconnect) if self._recorded else None

    def set_tools(self, tools: Toolset) -> Operation[None]:
        return operations.set_tools(self.sandbox_id, tools.data)

    def result(self, execution_id: str, wait: bool) -> Operation[Result | None]:
        checks.check_flag(wait, "wait")
        if not isinstance(execution_id, str) or not _EXECUTION.fullmatch(execution_id):
            raise invalid("execution_id", f"{execution_id!r:.100} is not an id", "the id of an execution")
        return operations.fetch(self.sandbox_id, execution_id, wait)

    def replay(self) -> Operation[list[ReplayEvent]]:
        return operations.replay(self.sandbox_id)

    def extend(self, timeout_seconds: float | None, idle_timeout_seconds: float | None) -> Operation[None]:
        if timeout_seconds is None and idle_timeout_seconds is None:
            raise invalid("timeout_seconds", "is None", "a number of seconds here or as idle_timeout_seconds")
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
            raise invalid("rules", "none is given", "one or more: allow('data.example', '*.example:443')")
        return network_operations.change(self.sandbox_id, allowed, denied)

    def expose(self, port: int, place: object) -> Operation[str]:
        return network_operations.expose(self.sandbox_id, check_port(port), place)

    def unexpose(self, port: int) -> Operation[None]:
        return network_operations.unexpose(self.sandbox_id, check_port(port))

    def fork(self, n: int, reseed: bool, inherit_secrets: bool) -> Operation[Forked]:
        checks.check_count(n)
        checks.check_flag(reseed, "reseed")
        checks.check_flag(inherit_secrets, "inherit_secrets")
        check_not_in_its_way(self.sandbox_id)
        return operations.fork(self.sandbox_id, n, reseed, inherit_secrets)

    def snapshot(self) -> Operation[str]:
        check_not_in_its_way(self.sandbox_id)
        return operations.snapshot(self.sandbox_id)

    def diff(self, other: Checked, paths: Collection[str] | None) -> Operation[Diff]:
        compared = checks.check_compared_paths(paths)
        for one in (self, other):
            check_not_in_its_way(one.sandbox_id)
        return operations.diff(self.sandbox_id, other.sandbox_id, compared)

    def merge_into(self, winner: Checked) -> Operation[None]:
        if winner.sandbox_id == self.sandbox_id:
            raise invalid("winner", "is the sandbox itself", "another sandbox")
        for one in (self, winner):
            check_not_in_its_way(one.sandbox_id)
        return operations.merge(self.sandbox_id, winner.sandbox_id)

    def restore(self, snapshot_id: str) -> Operation[None]:
        check_not_in_its_way(self.sandbox_id)
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


def _cell(code: str, language: str, timeout: float | None) -> bytes:
    checks.check_language(language)
    checks.check_timeout(timeout)
    return checks.check_code(code)
