"""The audit log: who did what to which sandbox, when, and how it ended. Never code, output, paths, values or keys.

It lists authenticated callers only. Others could fill it and so push out the lines that it is kept for.
"""

from __future__ import annotations

from collections.abc import Mapping

from ramet.doors.http.access.keys import LOCAL
from ramet.doors.http.engine_link.events import SandboxEvent
from ramet.protocol import calls
from ramet.web.request_log import Log, RequestLog

_SANDBOX = "/v1/sandboxes/{sandbox_id}"
# Actions that change something, run something, or move data in or out.
ROUTE_ACTIONS: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/sandboxes"): "create",
    ("DELETE", _SANDBOX): "delete",
    ("POST", f"{_SANDBOX}/fork"): "fork",
    ("POST", f"{_SANDBOX}/merge_into/{{winner_id}}"): "merge",
    ("POST", f"{_SANDBOX}/take/{{source_id}}"): "take",
    ("POST", f"{_SANDBOX}/extend"): "extend",
    ("POST", "/v1/spaces/{space_id}/resume"): "resume",
    ("DELETE", "/v1/spaces/{space_id}"): "discard",
    ("POST", f"{_SANDBOX}/exec"): "run",
    ("POST", f"{_SANDBOX}/interrupt"): "interrupt",
    ("POST", f"{_SANDBOX}/executions/{{execution_id}}/cancel"): "cancel",
    ("GET", f"{_SANDBOX}/files"): "download",
    ("PUT", f"{_SANDBOX}/files"): "upload",
    ("DELETE", f"{_SANDBOX}/files"): "remove file",
    ("POST", f"{_SANDBOX}/files/mkdir"): "make folder",
    ("POST", f"{_SANDBOX}/files/rename"): "rename file",
    ("POST", f"{_SANDBOX}/snapshots"): "snapshot",
    ("POST", f"{_SANDBOX}/restore"): "restore",
    ("POST", f"{_SANDBOX}/undo"): "undo",
    ("POST", f"{_SANDBOX}/hibernate"): "hibernate",
    ("POST", f"{_SANDBOX}/rewind"): "rewind",
    ("POST", "/v1/snapshots/{snapshot_id}/save"): "save template",
    ("DELETE", "/v1/snapshots/{snapshot_id}"): "drop snapshot",
    ("GET", "/v1/snapshots/{snapshot_id}/export"): "export snapshot",
    ("POST", "/v1/snapshots/import"): "import snapshot",
    ("DELETE", "/v1/templates/{template}"): "drop snapshot",
    ("POST", f"{_SANDBOX}/pty"): "terminal",
    ("GET", f"{_SANDBOX}/pty/{{terminal_id}}/attach"): "attach terminal",
    ("POST", f"{_SANDBOX}/pty/{{terminal_id}}/kill"): "kill terminal",
    ("POST", f"{_SANDBOX}/network"): "change network",
    ("POST", f"{_SANDBOX}/ports"): "expose",
    ("DELETE", f"{_SANDBOX}/ports/{{port}}"): "unexpose",
}
CALL_ACTIONS: Mapping[int, str] = {
    calls.CREATE: "create",
    calls.CLOSE: "delete",
    calls.FORK: "fork",
    calls.MERGE: "merge",
    calls.TAKE: "take",
    calls.EXTEND: "extend",
    calls.RESUME: "resume",
    calls.DISCARD: "discard",
    calls.THAW: "create",
    calls.RUN: "run",
    calls.INTERRUPT: "interrupt",
    calls.CANCEL: "cancel",
    calls.READ: "download",
    calls.WRITE: "upload",
    calls.GET_VALUE: "download",
    calls.SET_VALUE: "upload",
    calls.REMOVE: "remove file",
    calls.MKDIR: "make folder",
    calls.RENAME: "rename file",
    calls.SNAPSHOT: "snapshot",
    calls.RESTORE: "restore",
    calls.UNDO: "undo",
    calls.HIBERNATE: "hibernate",
    calls.REOPEN: "resume",
    calls.REWIND: "rewind",
    calls.SAVE: "save template",
    calls.DROP: "drop snapshot",
    calls.EXPORT: "export snapshot",
    calls.IMPORT: "import snapshot",
    calls.TERMINAL_OPEN: "terminal",
    calls.TERMINAL_ATTACH: "attach terminal",
    calls.TERMINAL_KILL: "kill terminal",
    calls.NETWORK_CHANGE: "change network",
    calls.EXPOSE: "expose",
    calls.UNEXPOSE: "unexpose",
}
# Actions of an operator on the sandboxes of other keys.
LIST_ALL = "list all"
INSPECT = "inspect"

_IDS_AT_MOST = 64  # children of a fork that are listed; a line has 4 KiB
_CLIENT_GONE = 499


class Audit:
    """Writes audit lines to a descriptor: the pipe of ``audit_file``. None: there is no audit log."""

    def __init__(self, descriptor: int | None) -> None:
        self._log = None if descriptor is None else Log("json", descriptor)

    def begins(self, request: RequestLog) -> None:
        """Record a cell before it runs: a worker that is killed while it runs could not record it afterwards."""
        if self._log is not None:
            self._log.record({"action": request.action, "phase": "begin", **_who(request), **_what(request)})

    def request(self, request: RequestLog) -> None:
        """Record a request that has ended."""
        if self._log is None or request.action is None:
            return
        made = request.made
        self._log.record(
            {
                "action": request.action,
                "phase": "end" if request.action == "run" else None,
                **_who(request),
                **_what(request),
                "outcome": request.outcome or _outcome(request.status),
                "error": request.error,
                "made": made[:_IDS_AT_MOST] or None,
                "made_count": len(made) or None,
                "ms": round(request.seconds * 1000, 3),
                "received_bytes": request.received_bytes or None,
                "sent_bytes": request.sent_bytes or None,
            }
        )

    def ended(self, event: SandboxEvent, key: str) -> None:
        """Record a sandbox that ended by itself, because its lifetime or its idle timeout was over."""
        if self._log is not None and event.cause not in ("closed", "merged"):
            self._log.record(
                {"action": "end", "key": key, "key_id": event.owner, "sandbox": event.id, "outcome": event.cause}
            )


def _who(request: RequestLog) -> dict[str, object]:
    return {"key": request.key or LOCAL, "key_id": request.owner or None, "client": request.client}


def _what(request: RequestLog) -> dict[str, object]:
    return {
        "sandbox": request.sandbox,
        "sandbox_key": request.sandbox_key,
        "execution": request.execution,
        "trace": request.trace,
    }


def _outcome(status: int) -> str:
    if status == _CLIENT_GONE or not status:
        return "gone"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"
