"""What a user may ask for when making a sandbox: plain values, before a machine has decided what they mean on it.

A new option is a field here and a keyword of ``AsyncSandbox``. It then has a place in the frames, in the body of
``POST /v1/sandboxes``, in OpenAPI, in the command line if it says so, and, as one of ``CarriedOptions``, in the spec
that the engine makes the sandbox from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ramet.errors import ProtocolError
from ramet.protocol import checks, fields
from ramet.protocol.argument_errors import Words, must
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.specs import NetworkSpec, SecretSpec, check_network, check_secrets
from ramet.protocol.requests.options import (
    FLAG,
    NETWORK,
    NUMBER,
    PAIRS,
    PATH,
    SECONDS,
    SECRETS,
    TEXT,
    TEXTS,
    WHOLE,
    CommandLine,
    Kind,
    check_options,
    one_of,
    option,
    read_options,
    whole_from,
    write_options,
    wrong_kind,
)


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A host folder shown in a sandbox."""

    source: str  # absolute path on the host
    target: str  # absolute path in the sandbox
    writable: bool

    @classmethod
    def read(cls, header: Mapping[str, object]) -> MountSpec:
        return cls(
            source=fields.text(header, "source"),
            target=fields.text(header, "target"),
            writable=fields.flag(header, "writable"),
        )


def _read_mounts(name: str, value: object) -> tuple[MountSpec, ...]:
    allowed = "an array of objects with source, target and writable"
    if not isinstance(value, list):
        wrong_kind(name, value, allowed)
    mounts = []
    for entry in value:
        try:
            mounts.append(MountSpec.read(entry if isinstance(entry, dict) else {}))
        except ProtocolError:
            raise must(name, f"be {allowed}", Words("something else in it")) from None
    return tuple(mounts)


def _read_history(name: str, value: object) -> int | None:
    if value is not False and type(value) is not int:
        wrong_kind(name, value, "false or a whole number")
    return value


def _check_history(name: str, value: object) -> None:
    if value is not False:
        checks.check_whole(name, value, 1, HISTORY_AT_MOST)


HISTORY_AT_MOST = 1000
ON_IDLE = ("end", "hibernate")
RECOVER = ("point", "fresh")
_HISTORY = Kind(
    _read_history,
    {"oneOf": [{"type": "integer", "minimum": 1, "maximum": HISTORY_AT_MOST}, {"type": "boolean", "enum": [False]}]},
    check=_check_history,
    parse=lambda text: False if text == "off" else int(text),
)
_MOUNTS = Kind(_read_mounts, {"type": "array"}, lambda mounts: [asdict(mount) for mount in mounts])


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOptions:
    """The options that mean the same to a user and to an engine. None: not asked for."""

    cwd: str | None = option(PATH, "Folder in which the first cell starts. Default: /root.")
    network: NetworkSpec | None = option(
        NETWORK,
        'What code may reach: "open", a list of hosts, ``["data.example", "*.example:443"]``, or a Network. Default: '
        "nothing but the sandbox itself.",
        check=lambda _, network: check_network(network),
        said_each_time=True,
        http_name="egress",
        http_help='What it may reach: false, true or "open" (all that is public), an array of rules (`api.example`, '
        "`*.example:443`, `10.0.0.0/8:5432`), or an object with more. More than the key may have is a 403.",
    )
    secrets: tuple[SecretSpec, ...] = option(
        SECRETS,
        '``{"NAME": Secret(value, hosts=[...])}``: requests to these hosts carry the value, and code sees only a '
        "placeholder.",
        (),
        said_each_time=True,
        http_help="Values that requests to some hosts carry and that the sandbox never holds: variables of these names "
        "have placeholders. Needs egress.",
    )

    history: int | None = option(
        _HISTORY,
        "How many of its past states are kept for ``undo`` and ``rewind``; False keeps none. Default: as many as cost "
        "next to nothing.",
        http_help="How many of its past states are kept for undo and rewind, from 1 to 1000: each cell waits until "
        "the state before it is kept. false: none. Default: states are kept where that costs next to nothing.",
        command_line=CommandLine(
            "--history", "past states to keep: a number, or off (default: those that cost next to nothing)", "N|off"
        ),
    )
    recover: str = option(
        TEXT,
        'What a sandbox whose Python has died goes on with: "point", its last kept state, or "fresh", an empty Python '
        "and its files as they are.",
        "point",
        check=one_of(RECOVER),
        schema={"enum": list(RECOVER)},
        http_help="What it goes on with when its Python has died: point, its last kept state; fresh, an empty Python "
        "and its files as they are.",
    )

    persistent: bool = option(
        FLAG,
        "Whether it survives the end of this program and of the machine: ``Sandbox.resume(id)`` has it again.",
        False,
        said_each_time=True,
        http_help="Its state is kept on disk, while it runs and when it ends: the next call after a crash has it "
        "again, and so has POST /v1/spaces/{space_id}/resume after its end.",
        command_line=CommandLine(
            "--persistent", "keep its state on disk, also when it ends: ramet resume", "", commands=("create",)
        ),
    )
    checkpoint_seconds: float | None = option(
        SECONDS,
        "How long after a cell the state of a persistent sandbox is written to disk, at most. Default: 10.",
        http_help="How long after a cell the state of a persistent sandbox is written to disk, at most. Default: 10.",
    )
    hibernate_after_seconds: float | None = option(
        SECONDS,
        "Seconds without use after which it goes to sleep on disk; the next call wakes it. Default: never.",
        http_help="Seconds without use after which it goes to sleep on disk; the next call wakes it. Default: never.",
        command_line=CommandLine(
            "--hibernate-after", "put it to sleep on disk after this time without use", "SECONDS", commands=("create",)
        ),
    )
    on_idle: str | None = option(
        TEXT,
        'What happens after ``idle_timeout_seconds``: "end", or "hibernate". Default: "end", or what the server says.',
        check=one_of(ON_IDLE),
        schema={"enum": list(ON_IDLE)},
        http_help="What happens after idle_timeout_seconds: end, or hibernate. Default: what the server says.",
    )

    def check_carried(self) -> None:
        """Raises InvalidArgument for one that is not allowed."""
        check_options(CarriedOptions, self)
        check_secrets(self.secrets, self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions(CarriedOptions):
    """The options of a new sandbox, as a user gives them. None means the default of the machine that makes it.

    ``repr`` hides the environment: its values may be secrets.
    """

    template: str = option(
        TEXT,
        '"default", "python-datasci" (numpy, pandas and matplotlib are imported), a Template of your own, or a '
        "Snapshot to start from.",
        "default",
        schema={"pattern": f"^{checks.TEMPLATE_NAME.pattern}$"},
        http_help="default, python-datasci, or a name that a snapshot was saved as",
        command_line=CommandLine("--template", "template of a new sandbox (default: default)", "NAME"),
    )
    preload: tuple[str, ...] | None = option(
        TEXTS,
        "Modules to import once: makes it a template of the user's own.",
        keyword=False,
        http_help="Modules to import once, for a template of this name.",
    )
    python: str | None = option(
        PATH,
        "Path of another interpreter, for instance of a virtual environment. Default: the one that runs Ramet.",
        embedded_only=True,
    )
    memory_mib: int | None = option(
        WHOLE,
        "Memory limit in MiB, from 64 to what this machine has. Default: 4096, or half of the machine's.",
        check=whole_from(checks.MEMORY_MIB_AT_LEAST),
        schema={"minimum": checks.MEMORY_MIB_AT_LEAST},
        command_line=CommandLine("--memory-mib", "memory limit of a new sandbox, in MiB", "N"),
    )
    pids: int | None = option(
        WHOLE,
        "Limit on processes and threads together. Default: 256.",
        check=whole_from(checks.PIDS_AT_LEAST, checks.PIDS_AT_MOST),
        schema={"minimum": checks.PIDS_AT_LEAST, "maximum": checks.PIDS_AT_MOST},
    )
    cpus: float | None = option(
        NUMBER,
        "Limit on processors, also a fraction. Default: 2.",
        check=lambda _, cpus: checks.check_cpus(cpus),
        schema={"minimum": checks.CPUS_AT_LEAST, "maximum": checks.CPUS_AT_MOST},
    )
    disk_mib: int | None = option(
        WHOLE,
        "Limit on the sandbox's own files in MiB. Default: 4096.",
        check=whole_from(1),
        schema={"minimum": 1},
    )
    env: tuple[tuple[str, str], ...] = option(
        PAIRS,
        "Environment variables, set on top of the sandbox's own.",
        (),
        check=lambda _, env: checks.check_environment(dict(env)),
        command_line=CommandLine(
            "--env",
            "variable of a new sandbox; without =VALUE the one of this command. May be given again. Code in the "
            "sandbox sees the value: for keys use --secret",
            "NAME[=VALUE]",
            repeated=True,
        ),
    )
    mounts: tuple[MountSpec, ...] | None = option(
        _MOUNTS,
        'Folders of this machine to show in the sandbox, ``{"/data": "./data"}``; read-only unless given as '
        "``Mount(path, writable=True)``.",
        embedded_only=True,
        command_line=CommandLine(
            "--mount",
            "show a folder of this machine in a new sandbox, read-only unless :rw follows; not at a server. May be "
            "given again",
            "HOST:SANDBOX[:rw]",
            repeated=True,
            commands=("run", "shell"),
        ),
    )
    timeout_seconds: float | None = option(
        SECONDS,
        "Seconds after which the sandbox ends by itself. Default: never; at a server, 30 minutes.",
        http_help="Seconds from creation until the sandbox ends. Default: 1800.",
        command_line=CommandLine(
            "--timeout", "close it after this time (default: the server's)", "SECONDS", commands=("create",)
        ),
    )
    idle_timeout_seconds: float | None = option(
        SECONDS,
        "Seconds without use after which it ends by itself. Default: never; at a server, 5 minutes.",
        http_help="Seconds without use until it ends. Default: 300.",
        command_line=CommandLine(
            "--idle-timeout",
            "close it after this time without use (default: the server's)",
            "SECONDS",
            commands=("create",),
        ),
    )

    def __repr__(self) -> str:
        return f"<SandboxOptions {self.template}, {len(self.mounts or ())} mounts, {len(self.env)} variables>"

    def check(self) -> None:
        """Raises InvalidArgument for one that is not allowed. Template and preload are checked where they are known."""
        check_options(SandboxOptions, self)
        check_secrets(self.secrets, self.network)

    def header(self) -> dict[str, object]:
        """Those that are asked for, as JSON."""
        return write_options(SandboxOptions, self)

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SandboxOptions:
        """Raises InvalidArgument for a field that is unknown or of another type: a person may have written it."""
        return cls(**read_options(cls, header))
