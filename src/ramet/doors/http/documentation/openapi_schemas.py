"""The schemas that descriptions of routes refer to by name. Those of a new sandbox follow ``SandboxOptions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.requests.cell_body import CellBody
from ramet.protocol.requests.options import options_of
from ramet.protocol.requests.sandboxes import SandboxOptions


def option_schema(name: str, help: str | None = None) -> api.Part:
    """The JSON schema of an option of a new sandbox, in which null is as good as nothing.

    ``help`` takes the place of its description; an empty one is left out.
    """
    return api.option(options_of(SandboxOptions)[name], help, _WITH_REFERENCES.get(name))


def options_schema(names: Iterable[str], helps: Mapping[str, str]) -> api.Part:
    """An object of some of the options of a new sandbox."""
    known = options_of(SandboxOptions)
    schemas = {known[name].http_name or name: option_schema(name, helps.get(name)) for name in names}
    return api.record(schemas, required=())


def _fields_of_a_new_sandbox() -> dict[str, api.Schema]:
    known = options_of(SandboxOptions).items()
    fields = {option.http_name or name: option_schema(name) for name, option in known if not option.embedded_only}
    theirs = "by the name that the published client uses."
    return {
        **fields,
        "snapshot": api.text("Made from this snapshot instead.", null=True),
        "ram_mib": option_schema("memory_mib", f"The same {theirs}"),
        "rootfs_gb": api.number(f"The same in GiB, {theirs}", null=True, minimum=1),
    }


# Options whose schema has parts with names of their own.
_WITH_REFERENCES: Mapping[str, api.Schema] = {
    "network": api.any_of(api.flag(null=True), api.choice("open"), api.ref("Rules"), api.ref("NewNetwork")),
    "secrets": api.mapping(
        api.record(
            {
                "value": api.text(minLength=6, maxLength=16384),
                "hosts": api.ref("Rules"),
                "headers": api.array(
                    api.text(minLength=1, maxLength=100),
                    (
                        "Headers that may carry the value beside Authorization, X-Api-Key and Api-Key. In other "
                        "places a placeholder is sent as it is."
                    ),
                    null=True,
                    maxItems=20,
                ),
                "query": api.array(
                    api.text(minLength=1, maxLength=100),
                    (
                        "Parameters of the query that may carry it. Its hosts are then trusted neither to store "
                        "it nor to repeat it in other words; so for path and body."
                    ),
                    null=True,
                    maxItems=20,
                ),
                "path": api.flag("Whether the path may carry it. Default: false.", null=True),
                "body": api.flag("Whether the body may carry it. Default: false.", null=True),
            },
            required=("value", "hosts"),
        ),
        maxProperties=100,
        propertyNames={"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,199}$"},
    ),
}
_LIMITS = api.record(
    {"memory_bytes": api.whole(), "pids": api.whole(), "cpus": api.number(), "disk_bytes": api.whole()}, open=True
)
_IMAGE = api.record(
    {
        "written_ms": api.whole("When the newest image of its state was complete.", null=True),
        "size_bytes": api.whole("What that takes on disk."),
        "last_error": api.text("Why the last try to write one failed; empty if it did not."),
    },
    open=True,
    null=True,
)
_FOR_OPERATORS = {
    "owner": api.text("The id of the key that owns it; shown to operators only."),
    "key": api.text("The name of that key, or local; shown to operators only.", null=True),
}
_RULES = {
    "rules": api.array(api.text(), 'What is allowed; "open" is all that is public.'),
    "denied": api.array(api.text()),
    "addresses": api.mapping(api.text()),
    "connections": api.whole(),
    "bytes_per_second": api.whole(null=True),
    "total_bytes": api.whole(null=True),
}

_POINT_FIELDS: dict[str, api.Schema] = {
    "id": api.text(),
    "kind": api.choice("start", "cell", "restore", "restart", "take"),
    "cell_id": api.whole("0 for a step that is no cell."),
    "code": api.text("The first 200 characters of the cell."),
    "outcome": api.choice("", "ok", "error", "interrupted", "died"),
    "kept": api.flag("Whether the sandbox can go back there."),
    "lost": api.flag("Its work is not part of the present state: Python died, and was restored to an earlier point."),
    "changed_bytes": api.whole("Memory written since the point before, roughly.", null=True),
    "time_ms": api.whole(),
    "note": api.text("Why the state is not kept."),
    "pause_seconds": api.number("That the sandbox stood still for it.", null=True),
    "kept_in": api.choice("memory", "disk", "template", "", help="Where the state is; empty if it is not kept."),
    "kept_bytes": api.whole("What it takes there, as far as it was measured."),
}

_FILE_CHANGES = api.array(
    api.record(
        {
            "path": api.text(),
            "change": api.choice("added", "removed", "modified"),
            "before": api.mapping(null=True),
            "after": api.mapping(null=True),
            "approximate": api.flag("Both have a file of that size there, with more content than is compared."),
        },
        required=("path", "change", "before", "after"),
    )
)

SCHEMAS: Mapping[str, api.Schema] = {
    "Error": api.record(
        {
            "error": api.text("What went wrong, in words."),
            "code": api.text("The same for programs; see the reference of errors."),
            "hint": api.text("A way out, where one is known.", null=True),
            "details": api.mapping(),
        }
    ),
    "Created": api.record(
        {
            "id": api.text(),
            "state": api.choice("ready"),
            "space_id": api.text("Of a persistent one: what to resume it by."),
        },
        required=("id", "state"),
    ),
    "SandboxRow": api.record(
        {
            "id": api.text(),
            "state": api.text(),
            "template": api.text(),
            "created_ms": api.whole(),
            "expires_ms": api.whole(null=True),
            "idle_expires_ms": api.whole(null=True),
            "parent": api.text(null=True),
            "waiting": api.whole(),
            "memory_limit_bytes": api.whole(),
            "persistent": api.flag(),
            **_FOR_OPERATORS,
        },
        required=("id", "state", "template", "created_ms", "waiting"),
        open=True,
    ),
    "SandboxInfo": api.record(
        {
            "id": api.text(),
            "state": api.text("idle, running, lost or hibernated"),
            "pid": api.whole(),
            "python": api.text(),
            "template": api.text(),
            "waiting": api.whole("Cells behind the running one."),
            "limits": _LIMITS,
            "usage": api.mapping(api.whole()),
            "walls": api.mapping(),
            "created_ms": api.whole(),
            "expires_ms": api.whole(null=True),
            "idle_expires_ms": api.whole(null=True),
            "parent": api.text(null=True),
            "persistent": api.flag(),
            "image": _IMAGE,
            **_FOR_OPERATORS,
        },
        required=("id", "state", "template", "limits", "usage"),
        open=True,
    ),
    "SandboxMetrics": api.record(
        {
            "id": api.text(),
            "state": api.text(),
            "waiting": api.whole(),
            "usage": api.mapping(api.whole()),
            "limits": _LIMITS,
        }
    ),
    "NewSandbox": api.record(_fields_of_a_new_sandbox(), required=()),
    "Cell": api.options_record(CellBody),
    "Result": api.record(
        {
            "execution_id": api.text(),
            "stdout": api.text(),
            "stderr": api.text(),
            "exit_code": api.whole(),
            "value": api.text("The last expression, as text.", null=True),
            "results": api.array(
                api.record(
                    {
                        "what": api.choice("value", "display"),
                        "data": api.mapping(help='By MIME type: text, JSON, or {"base64": ...} for bytes.'),
                    }
                )
            ),
            "interrupted": api.flag(),
            "state": api.choice("kept", "lost", "restored"),
            "cause": api.text(null=True),
            "restarted": api.flag(),
            "restored": api.flag("It began in a kept state, because Python had ended after the cell before."),
            "truncated": api.mapping(null=True),
            "background": api.text(),
            "error": api.record({"name": api.text(), "message": api.text()}, required=(), open=True, null=True),
            "duration_seconds": api.number(),
            "cell_id": api.whole(),
            "tool_calls": api.array(
                api.record(
                    {
                        "name": api.text(),
                        "arguments": api.mapping(help="null where they were too long to keep.", null=True),
                        "duration_seconds": api.number(),
                        "outcome": api.choice(
                            "ok", "error", "invalid", "timeout", "refused", "unknown", "gone", "cancelled"
                        ),
                        "message": api.text(null=True),
                    },
                    required=(),
                    open=True,
                ),
                (
                    "Calls of tools by the cell, the first 1000. A cell that runs over JSON has nobody who "
                    "answers them: each is refused."
                ),
            ),
            "tool_calls_dropped": api.whole("How many more there were."),
        },
        required=("stdout", "stderr", "exit_code", "value", "results", "interrupted", "state"),
        open=True,
    ),
    "Event": api.record(
        {
            "type": api.choice("stdout", "stderr", "result", "clear", "error", "exit"),
            "data": {"description": "A line or a piece of text; the exit code; forms by MIME type."},
            "seq": api.whole(),
            "ts": api.whole("Milliseconds since the epoch."),
        },
        open=True,
    ),
    "TerminalEvent": api.record(
        {
            "type": api.choice("pty_ready", "pty_data", "pty_exit", "pty_error"),
            "session_id": api.text(),
            "data_b64": api.text(),
            "seq": api.whole("Offset of the first byte in all that the terminal has printed."),
            "data": api.whole("The exit code, 128+n after signal n."),
            "message": api.text(),
            "code": api.text(),
        },
        required=("type",),
    ),
    "FileInfo": api.record(
        {
            "name": api.text(),
            "type": api.choice("file", "folder", "link", "other"),
            "size_bytes": api.whole(),
            "mode": api.whole("Permission bits."),
            "modified_seconds": api.number("Since the epoch."),
        }
    ),
    "Point": api.record(_POINT_FIELDS),
    "History": api.record(
        {
            "points": api.array(api.ref("Point")),
            "taking": api.choice("on", "suspended", "off", help="Whether points are taken."),
            "note": api.text("Why they are not."),
            "memory_bytes": api.whole("Memory that the kept states take, as far as it was measured."),
            "disk_bytes": api.whole("What they take on disk."),
        }
    ),
    "Undone": api.record(
        {
            "point": api.ref("Point"),
            "cell_ids": api.array(api.whole(), "Cells whose work is undone."),
            "tool_calls": api.array(api.text(), "Tools that they called: not undone."),
            "connections": api.array(api.text(), "Connections that were made since: not undone."),
            "writable_mounts": api.array(api.text(), "Host folders that code could write to: not undone."),
        }
    ),
    "Diff": api.record(
        {
            "files": _FILE_CHANGES,
            "names": api.array(
                api.record(
                    {
                        "name": api.text(),
                        "change": api.choice("added", "removed", "changed"),
                        "before": api.mapping(null=True),
                        "after": api.mapping(null=True),
                        "approximate": api.flag(),
                    },
                    required=("name", "change", "before", "after"),
                )
            ),
            "uncompared": api.array(api.text(), "Names that look alike, and of which no more could be learnt."),
        }
    ),
    "Taken": api.record(
        {
            "names": api.array(api.text(), "Variables that were taken."),
            "files": _FILE_CHANGES,
            "size_bytes": api.whole("Of values and contents that were copied."),
        }
    ),
    "Terminal": api.record(
        {"pty_id": api.text(), "cmd_label": api.text(), "created_at_ms": api.whole(), "exit_code": api.whole(null=True)}
    ),
    "NewTerminal": {
        **api.record(
            {
                "shellCmd": api.text("A command for bash.", minLength=1),
                "argv": api.array(api.text(), minItems=1, maxItems=4096),
                "cols": api.whole(null=True, minimum=1, maximum=65535),
                "rows": api.whole(null=True, minimum=1, maximum=65535),
                "env": api.array(api.array(api.text(), minItems=2, maxItems=2), "Pairs of name and value.", null=True),
                "cwd": api.text(null=True),
            },
            required=(),
        ),
        "oneOf": [{"required": ["shellCmd"]}, {"required": ["argv"]}],
    },
    "Rules": {
        **api.array(api.text(minLength=1, maxLength=300), maxItems=500),
        "example": ["api.example", "*.example:443"],
    },
    "NewNetwork": api.record(
        {
            "rules": api.any_of(api.ref("Rules"), api.choice("open"), {"type": "null"}),
            "open": api.flag('The same as rules "open", beside other rules.'),
            "deny": api.ref("Rules", "Not these, whatever else is allowed."),
            "addresses": api.mapping(
                api.text(),
                "Names that are not looked up, and the address of each. Only where the server has no bound on them.",
                null=True,
            ),
            "connections": api.whole("At once. Default: 256.", null=True, minimum=1, maximum=10000),
            "bytes_per_second": api.whole(null=True, minimum=1),
            "total_bytes": api.whole("Sent and received, as long as the sandbox lives.", null=True, minimum=1),
            "ca_pem": api.text(
                "More certificates that are trusted where secrets are put in.", null=True, maxLength=100000
            ),
        },
        required=(),
    ),
    "NetworkRules": api.record({**_RULES}),
    "Network": api.record(
        {
            **_RULES,
            "attempts": api.array(api.ref("Attempt"), "Oldest first."),
            "dropped": api.whole("Older ones that are not kept."),
            "raw_tcp": api.text("Why programs that know no proxy reach nothing; null: they do.", null=True),
            "closed": api.text("Why it reaches nothing at all; null: it reaches what it may.", null=True),
        }
    ),
    "Attempt": api.record(
        {
            "time": api.number("Seconds since 1970."),
            "kind": api.choice("http", "connect", "socks", "tcp", "dns"),
            "host": api.text(),
            "port": api.whole(),
            "allowed": api.flag(),
            "rule": api.text("The one that decided.", null=True),
            "reason": api.text(null=True),
            "address": api.text(null=True),
            "sent_bytes": api.whole(),
            "received_bytes": api.whole(),
            "open": api.flag(),
        },
        required=("time", "kind", "host", "port", "allowed"),
        open=True,
    ),
    "Exposed": api.record(
        {
            "port": api.whole(),
            "url": api.text("With the host that this request was sent to."),
            "path": api.text(),
            "token": api.text("Whoever knows it reaches the port."),
        }
    ),
}
