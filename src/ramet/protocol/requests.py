"""What a user may ask for when making a sandbox: plain values, before a machine has decided what they mean on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn, TypeVar

from ramet.errors import ProtocolError
from ramet.protocol.network import NetworkSpec, SecretSpec
from ramet.protocol.network_requests import network_request, read_network, read_secrets, secrets_request
from ramet.protocol.refusing import Words, kind_of, must, unknown_field
from ramet.protocol.specs import MountSpec

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """None: what is usual where the sandbox is made. ``repr`` hides the environment: its values may be secrets."""

    template: str = "default"
    preload: tuple[str, ...] | None = None  # makes it a template of the user's own
    python: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    mounts: tuple[MountSpec, ...] = ()
    memory_mib: int | None = None
    pids: int | None = None
    cpus: float | None = None
    disk_mib: int | None = None
    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    persistent: bool = False
    network: NetworkSpec | None = None  # None: loopback only
    secrets: tuple[SecretSpec, ...] = ()

    def __repr__(self) -> str:
        return f"<SandboxRequest {self.template}, {len(self.mounts)} mounts, {len(self.env)} variables>"

    def header(self) -> dict[str, object]:
        """What is not asked for is left out."""
        header: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                header[field.name] = value
        if self.preload is not None:
            header["preload"] = list(self.preload)
        if self.env:
            header["env"] = dict(self.env)
        if self.mounts:
            header["mounts"] = [asdict(mount) for mount in self.mounts]
        if self.network is not None:
            header["network"] = network_request(self.network)
        if self.secrets:
            header["secrets"] = secrets_request(self.secrets)
        return header

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SandboxRequest:
        """What someone wrote by hand, perhaps: a field that is unknown or of another type is an InvalidArgument."""
        for name in header:
            if name not in _READERS:
                raise unknown_field(str(name), _READERS)
        return cls(**{name: _READERS[name](name, value) for name, value in header.items()})


def _text(name: str, value: object) -> str:
    return value if isinstance(value, str) else _wrong(name, value, "a string")


def _whole(name: str, value: object) -> int:
    # bool is an int in Python, not in JSON.
    return value if type(value) is int else _wrong(name, value, "a whole number")


def _number(name: str, value: object) -> float:
    return value if type(value) is float or type(value) is int else _wrong(name, value, "a number")


def _flag(name: str, value: object) -> bool:
    return value if isinstance(value, bool) else _wrong(name, value, "true or false")


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        _wrong(name, value, "an array of strings")
    return tuple(_text(name, entry) for entry in value)


def _pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        _wrong(name, value, "an object of strings")
    return tuple((_text(name, key), _text(name, entry)) for key, entry in value.items())


def _mounts(name: str, value: object) -> tuple[MountSpec, ...]:
    allowed = "an array of objects with source, target and writable"
    if not isinstance(value, list):
        _wrong(name, value, allowed)
    mounts = []
    for entry in value:
        try:
            mounts.append(MountSpec.read(entry if isinstance(entry, dict) else {}))
        except ProtocolError:
            raise must(name, f"be {allowed}", Words("something else in it")) from None
    return tuple(mounts)


def _optional(read: Callable[[str, object], Value]) -> Callable[[str, object], Value | None]:
    return lambda name, value: None if value is None else read(name, value)


def _wrong(name: str, value: object, allowed: str) -> NoReturn:
    raise must(name, f"be {allowed}", kind_of(value))  # never the value: it may be that of a secret or a variable


_READERS: Mapping[str, Callable[[str, object], Any]] = {
    "template": _text,
    "preload": _optional(_texts),
    "python": _optional(_text),
    "env": _pairs,
    "cwd": _optional(_text),
    "mounts": _mounts,
    "memory_mib": _optional(_whole),
    "pids": _optional(_whole),
    "cpus": _optional(_number),
    "disk_mib": _optional(_whole),
    "timeout_seconds": _optional(_number),
    "idle_timeout_seconds": _optional(_number),
    "persistent": _flag,
    "network": read_network,
    "secrets": read_secrets,
}
