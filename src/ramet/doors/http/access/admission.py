"""What a client asks for, as the engine is asked: with its owner, and without what only embedded callers may do."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from ramet.doors.http.settings import ServerSettings
from ramet.errors import ExecutionUnknown, SandboxClosed
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.checks import BUILTIN_TEMPLATES
from ramet.protocol.network.requests import network_request, secrets_request
from ramet.protocol.network.specs import NetworkSpec, SecretSpec, check_network, check_secrets
from ramet.protocol.requests.options import options_of
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.specs import Interpreter, Lifetime, ThawSpec, network_in, secrets_in
from ramet.transport.resolving import check_memory_mib, resolve, resolve_thaw

_SANDBOX_ID = re.compile(r"sbx_[0-9a-f]{32}")
EXECUTION_ID = re.compile(r"exe_[0-9a-f]{32}")
ON_DISCONNECT = ("keep", "interrupt")

# What a client may ask for. Not WATCH and STATS, which tell of everybody; nor DIAL, whose answer is a descriptor.
# EXPOSE and UNEXPOSE are answered by the server itself: a port of its machine is not what a client far away wants.
ALLOWED = frozenset(
    (
        calls.CREATE,
        calls.RUN,
        calls.INTERRUPT,
        calls.CLOSE,
        calls.INFO,
        calls.FACTS,
        *calls.FILE_CALLS,
        *calls.FORK_CALLS,
        *calls.HISTORY_CALLS,
        *calls.SLEEP_CALLS,
        *calls.IMAGE_CALLS,
        *calls.VALUE_CALLS,
        *calls.TERMINAL_CALLS,
        calls.SANDBOXES,
        calls.EXTEND,
        calls.REPLAY,
        calls.FETCH,
        calls.CANCEL,
        calls.RESUME,
        calls.DISCARD,
        calls.SET_TOOLS,
        calls.TOOL_ANSWER,
        calls.NETWORK,
        calls.NETWORK_CHANGE,
        calls.EXPOSE,
        calls.UNEXPOSE,
    )
)
# Calls that make sandboxes or a snapshot: a repetition of one must not make them twice.
MAKING = calls.MAKING


def new_execution_id() -> str:
    return f"exe_{secrets.token_hex(16)}"


def check_execution_id(execution: object) -> str:
    if not isinstance(execution, str) or not EXECUTION_ID.fullmatch(execution):
        raise must("execution", "be exe_ and 32 random hexadecimal digits", execution)
    return execution


def check_known_execution(execution: str) -> str:
    """For an id that is asked about: what cannot be one is unknown."""
    if not EXECUTION_ID.fullmatch(execution):
        raise ExecutionUnknown(f"there is no execution {execution!r:.100}")
    return execution


def check_sandbox_id(sandbox_id: str) -> str:
    """Refuse a malformed id here, without asking the engine. Raises SandboxClosed."""
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise SandboxClosed(f"there is no sandbox {sandbox_id!r:.100}")
    return sandbox_id


def check_on_disconnect(wish: object) -> str:
    if wish not in ON_DISCONNECT:
        raise must("on_disconnect", f"be {' or '.join(map(repr, ON_DISCONNECT))}", wish)
    return str(wish)


class Creation:
    """Turns what a user may ask for into what the engine makes it from."""

    def __init__(self, settings: ServerSettings, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._lifetime = Lifetime(settings.timeout_seconds, settings.idle_timeout_seconds)
        self._on_idle: str = settings.on_idle
        self._kept_seconds = settings.kept_days * 86400

    def create(self, options: SandboxOptions, owner: str) -> tuple[int, dict[str, object]]:
        """Kind and header of the engine's call. The name of a saved snapshot is thawed."""
        options = self._lasting(options)
        if options.template in BUILTIN_TEMPLATES or options.preload is not None:
            return calls.CREATE, resolve(options, interpreter=self._interpreter, owner=owner).header()
        checks.check_template_name(options.template, "template")
        return calls.THAW, {**resolve_thaw(options, None, options.template).header(), "owner": owner}

    def thaw(self, options: SandboxOptions, snapshot: str, owner: str) -> dict[str, object]:
        options = self._lasting(options)
        if options.preload is not None:
            raise wrong_argument("preload", "preload cannot be given with a snapshot, which has its own")
        checks.check_template_name(options.template, "template")
        return {**resolve_thaw(options, snapshot, None).header(), "owner": owner}

    def importing(self, options: SandboxOptions, owner: str) -> dict[str, object]:
        """The header of an IMPORT: interpreter and limits are decided here."""
        return resolve(self._lasting(options), interpreter=self._interpreter, owner=owner).header()

    def _lasting(self, options: SandboxOptions) -> SandboxOptions:
        """With the lifetime that sandboxes of this server have, and without what only embedded ones may have."""
        for name, option in options_of(SandboxOptions).items():
            if option.embedded_only and getattr(options, name) not in (None, ()):
                raise _only_embedded(name)
        on_idle = options.on_idle or self._on_idle
        lifetime = self._lifetime_of(options.timeout_seconds, options.idle_timeout_seconds, on_idle)
        return replace(
            options,
            mounts=None,
            on_idle=on_idle,
            timeout_seconds=lifetime.timeout_seconds,
            idle_timeout_seconds=lifetime.idle_timeout_seconds,
        )

    def thaw_header(self, header: Mapping[str, object], owner: str) -> dict[str, object]:
        """A THAW as the SDK writes it."""
        spec = ThawSpec.read(header)
        if spec.mounts:
            raise _only_embedded("mounts")
        if spec.memory_bytes is not None:
            check_memory_mib(spec.memory_bytes // checks.MIB)
        _check_network(spec.network, spec.secrets)
        wanted, on_idle = spec.lifetime or Lifetime(), spec.on_idle or self._on_idle
        lifetime = self._lifetime_of(wanted.timeout_seconds, wanted.idle_timeout_seconds, on_idle)
        return {**replace(spec, mounts=None, lifetime=lifetime, on_idle=on_idle).header(), "owner": owner}

    def resume_header(self, header: Mapping[str, object], owner: str) -> dict[str, object]:
        wanted = fields.optional_mapping(header, "lifetime")
        lifetime = Lifetime() if wanted is None else Lifetime.read(wanted)
        whole = self._lifetime_of(lifetime.timeout_seconds, lifetime.idle_timeout_seconds, self._on_idle)
        network, secrets = network_in(header), secrets_in(header)
        _check_network(network, secrets)
        return {
            "space": fields.text(header, "space"),
            "lifetime": asdict(whole),
            "persistent": fields.flag(header, "persistent"),
            "network": None if network is None else network_request(network),
            "secrets": secrets_request(secrets),
            "owner": owner,
        }

    def _lifetime_of(self, timeout_seconds: float | None, idle_timeout_seconds: float | None, on_idle: str) -> Lifetime:
        checks.check_seconds(timeout_seconds, "timeout_seconds")
        checks.check_seconds(idle_timeout_seconds, "idle_timeout_seconds")
        return Lifetime(
            self._usual_seconds(on_idle) if timeout_seconds is None else timeout_seconds,
            self._lifetime.idle_timeout_seconds if idle_timeout_seconds is None else idle_timeout_seconds,
        )

    def _usual_seconds(self, on_idle: str) -> float | None:
        """How long a sandbox lives that asks for no end. One that sleeps when it is idle costs nothing but disk."""
        return self._kept_seconds if on_idle == "hibernate" else self._lifetime.timeout_seconds


def _check_network(network: NetworkSpec | None, secrets: Iterable[SecretSpec]) -> None:
    if network is not None:
        check_network(network)
    check_secrets(secrets, network)


def _only_embedded(argument: str) -> Exception:
    return wrong_argument(argument, f"{argument} is for embedded sandboxes only, not over HTTP")
