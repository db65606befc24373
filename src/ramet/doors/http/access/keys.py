"""Keys: who may use the server, and how much. A secret is shown once; only its hash is stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from ramet.doors.http.access.network_bounds import NOTHING
from ramet.protocol import fields
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.checks import MIB
from ramet.protocol.network.specs import NetworkSpec
from ramet.protocol.values.allowances import Allowance

# "sandboxes": everything with its own sandboxes. "operator": the same, /metrics, and listing and ending the sandboxes
# of all keys; it runs nothing in those and reads nothing from them. "metrics": /metrics only.
Scope = Literal["sandboxes", "operator", "metrics"]
SCOPES: Mapping[str, Scope] = {"sandboxes": "sandboxes", "operator": "operator", "metrics": "metrics"}

# The owner of everything made without a key, which a server allows on loopback only.
LOCAL = "local"

_PREFIX = "rmt_"
_SECRET_BYTES = 32
# Names are also labels of /metrics and fields of the log, so each is short and one word.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LIMIT_AT_MOST = 2**40


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits for all sandboxes of a key together. None: unlimited."""

    sandboxes: int | None = 100
    memory_mib: int | None = None  # the sum of the sandboxes' limits
    concurrent_cells: int | None = 1000  # running or queued
    templates: int | None = 8  # of its own: with its own preload, or saved from snapshots
    image_mib: int | None = 65_536  # on disk: snapshots that it saved, and states of persistent sandboxes

    def header(self) -> dict[str, object]:
        return asdict(self)

    def allowance(self, network: NetworkSpec) -> Allowance:
        """The part that the engine enforces, with the bound on network rules."""
        memory_bytes = None if self.memory_mib is None else self.memory_mib * MIB
        image_bytes = None if self.image_mib is None else self.image_mib * MIB
        return Allowance(self.sandboxes, memory_bytes, self.templates, image_bytes, network)

    @classmethod
    def read(cls, header: Mapping[str, object]) -> KeyLimits:
        return cls(
            sandboxes=fields.optional_whole(header, "sandboxes"),
            memory_mib=fields.optional_whole(header, "memory_mib"),
            concurrent_cells=fields.optional_whole(header, "concurrent_cells"),
            templates=fields.optional_whole(header, "templates"),
            image_mib=fields.optional_whole(header, "image_mib") if "image_mib" in header else cls().image_mib,
        )


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as the server knows it."""

    id: str  # "key_<16 hex>"; the owner of what is made with it
    name: str
    scope: Scope
    limits: KeyLimits
    created_ms: int
    revoked_ms: int | None = None
    network: NetworkSpec = NOTHING  # the bound on the network of its sandboxes
    expires_ms: int | None = None  # None: never
    last_used_ms: int | None = None  # to the minute; None: never

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms

    @property
    def operates(self) -> bool:
        """Whether it may see and end the sandboxes of all keys."""
        return self.scope == "operator"


def new_secret() -> str:
    return _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def new_key_id() -> str:
    return f"key_{secrets.token_hex(8)}"


def digest(secret: str) -> str:
    """The stored hash of a secret. A secret has 256 random bits, so a plain hash is enough against guessing."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise must("name", "be 1 to 64 letters, digits, '.', '_', '@' or '-', and begin with a letter or digit", name)
    if name == LOCAL:
        raise wrong_argument("name", f"{LOCAL!r} is the name for callers without a key; choose another one")
    return name


def check_scope(scope: object) -> Scope:
    known = SCOPES.get(scope) if isinstance(scope, str) else None
    if known is None:
        raise must("scope", f"be {' or '.join(map(repr, SCOPES))}", scope)
    return known


def check_limits(limits: KeyLimits) -> KeyLimits:
    for name, value in limits.header().items():
        if value is None:
            continue
        if type(value) is not int or not 0 <= value <= _LIMIT_AT_MOST:
            raise must(name, "be a whole number that is not negative, or None for no limit", value)
    return limits
