"""What a sandbox is made from: template, mounts, limits. Frozen values that can be written to a frame and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.requests import read_network, read_secrets
from ramet.protocol.network.specs import NetworkSpec, SecretSpec
from ramet.protocol.requests.options import options_of, read_options, write_options
from ramet.protocol.requests.sandboxes import CarriedOptions, MountSpec

__all__ = [
    "Interpreter",
    "Lifetime",
    "Limits",
    "MountSpec",
    "SandboxSpec",
    "TemplateSpec",
    "ThawSpec",
    "network_in",
    "secrets_in",
]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of the host and the folders it needs, as found by its owner."""

    executable: str  # absolute; may be a symbolic link, as in a virtual environment
    version: str
    trees: tuple[str, ...]  # folders outside the system's own, shown in a sandbox at the same path
    links: tuple[tuple[str, str], ...]  # symbolic links outside those folders: path, target
    library: str | None  # a folder with IPython, when the interpreter has none

    def header(self) -> dict[str, object]:
        return {
            "executable": self.executable,
            "version": self.version,
            "trees": list(self.trees),
            "links": dict(self.links),
            "library": self.library,
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Interpreter:
        return cls(
            executable=fields.text(header, "executable"),
            version=fields.text(header, "version"),
            trees=fields.texts(header, "trees"),
            links=tuple(fields.text_mapping(header, "links").items()),
            library=fields.optional_text(header, "library"),
        )


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """A booted interpreter to make sandboxes from. Two specs that are equal share one boot."""

    name: str
    interpreter: Interpreter
    preload: tuple[str, ...]
    builtin: bool

    @property
    def python(self) -> str:
        return self.interpreter.executable

    @property
    def python_version(self) -> tuple[int, int]:
        major, minor, *_ = (*self.interpreter.version.split("."), "0")
        return int(major), int(minor)

    def header(self) -> dict[str, object]:
        return {
            "name": self.name,
            "interpreter": self.interpreter.header(),
            "preload": list(self.preload),
            "builtin": self.builtin,
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> TemplateSpec:
        return cls(
            name=fields.text(header, "name"),
            interpreter=Interpreter.read(fields.mapping(header, "interpreter")),
            preload=fields.texts(header, "preload"),
            builtin=fields.flag(header, "builtin"),
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use at most."""

    memory_bytes: int
    pids: int
    cpus: float
    disk_bytes: int

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Limits:
        return cls(
            memory_bytes=fields.whole(header, "memory_bytes"),
            pids=fields.whole(header, "pids"),
            cpus=fields.number(header, "cpus"),
            disk_bytes=fields.whole(header, "disk_bytes"),
        )


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a sandbox ends by itself: seconds after it was made, and after it was last used. None: never."""

    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Lifetime:
        return cls(
            timeout_seconds=fields.optional_number(header, "timeout_seconds"),
            idle_timeout_seconds=fields.optional_number(header, "idle_timeout_seconds"),
        )


@dataclass(frozen=True, slots=True)
class SandboxSpec(CarriedOptions):
    """All that the engine makes a sandbox from. ``repr`` hides the environment: its values may be secrets.

    Beside the options that it inherits, those that a machine had to decide about, and the owner.
    """

    template: TemplateSpec
    limits: Limits
    mounts: tuple[MountSpec, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    lifetime: Lifetime = Lifetime()
    owner: str = ""  # whose it is, where an engine serves several; its forks and snapshots are too

    def __repr__(self) -> str:
        return f"<SandboxSpec {self.template.name}, {len(self.mounts)} mounts, {len(self.environment)} variables>"

    def header(self) -> dict[str, object]:
        return {
            "template": self.template.header(),
            "limits": asdict(self.limits),
            "mounts": [asdict(mount) for mount in self.mounts],
            "environment": dict(self.environment),
            "lifetime": asdict(self.lifetime),
            "owner": self.owner,
            **write_options(CarriedOptions, self),
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SandboxSpec:
        return cls(
            template=TemplateSpec.read(fields.mapping(header, "template")),
            limits=Limits.read(fields.mapping(header, "limits")),
            mounts=tuple(_mount(value) for value in fields.array(header, "mounts")),
            environment=tuple(fields.text_mapping(header, "environment").items()),
            lifetime=Lifetime.read(fields.mapping(header, "lifetime")),
            owner=fields.text(header, "owner"),
            **read_options(CarriedOptions, header, strict=False),
        )


@dataclass(frozen=True, slots=True)
class ThawSpec(CarriedOptions):
    """A sandbox from a snapshot, by its id, or from a saved template, by its name. None: as the frozen one had it.

    Network and secrets are not as the frozen one had them: what may be reached, and with which secrets, is said each
    time.
    """

    snapshot: str | None
    name: str | None
    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    disk_bytes: int | None = None
    mounts: tuple[MountSpec, ...] | None = None
    environment: tuple[tuple[str, str], ...] = ()
    lifetime: Lifetime | None = None

    def __repr__(self) -> str:
        return f"<ThawSpec {self.name or self.snapshot}, {len(self.environment)} variables>"

    def limits(self, default: Limits) -> Limits:
        return Limits(
            default.memory_bytes if self.memory_bytes is None else self.memory_bytes,
            default.pids if self.pids is None else self.pids,
            default.cpus if self.cpus is None else self.cpus,
            default.disk_bytes if self.disk_bytes is None else self.disk_bytes,
        )

    def whole(self, frozen: SandboxSpec) -> SandboxSpec:
        """The spec of a sandbox that is thawed from one that was ``frozen``. Nothing is checked."""
        carried = {
            name: getattr(self if option.said_each_time or getattr(self, name) != option.default else frozen, name)
            for name, option in options_of(CarriedOptions).items()
        }
        return SandboxSpec(
            frozen.template,
            self.limits(frozen.limits),
            frozen.mounts if self.mounts is None else self.mounts,
            tuple({**dict(frozen.environment), **dict(self.environment)}.items()),
            frozen.lifetime if self.lifetime is None else self.lifetime,
            frozen.owner,
            **carried,
        )

    def header(self) -> dict[str, object]:
        return {
            "snapshot": self.snapshot,
            "name": self.name,
            "memory_bytes": self.memory_bytes,
            "pids": self.pids,
            "cpus": self.cpus,
            "disk_bytes": self.disk_bytes,
            "mounts": None if self.mounts is None else [asdict(mount) for mount in self.mounts],
            "environment": dict(self.environment),
            "lifetime": None if self.lifetime is None else asdict(self.lifetime),
            **write_options(CarriedOptions, self),
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> ThawSpec:
        mounts = None if header.get("mounts") is None else fields.array(header, "mounts")
        lifetime = fields.optional_mapping(header, "lifetime")
        return cls(
            snapshot=fields.optional_text(header, "snapshot"),
            name=fields.optional_text(header, "name"),
            memory_bytes=fields.optional_whole(header, "memory_bytes"),
            pids=fields.optional_whole(header, "pids"),
            cpus=fields.optional_number(header, "cpus"),
            disk_bytes=fields.optional_whole(header, "disk_bytes"),
            mounts=None if mounts is None else tuple(_mount(value) for value in mounts),
            environment=tuple(fields.text_mapping(header, "environment").items()),
            lifetime=None if lifetime is None else Lifetime.read(lifetime),
            **read_options(CarriedOptions, header, strict=False),
        )


def _mount(value: object) -> MountSpec:
    if not isinstance(value, dict):
        raise ProtocolError("field 'mounts' of a frame header holds something that is not an object")
    return MountSpec.read(value)


def network_in(header: Mapping[str, object]) -> NetworkSpec | None:
    """From a header in which it may be missing. Raises InvalidArgument."""
    return read_network("network", header.get("network"))


def secrets_in(header: Mapping[str, object]) -> tuple[SecretSpec, ...]:
    """From a header in which they may be missing. Raises InvalidArgument."""
    given = header.get("secrets")
    return () if given == [] else read_secrets("secrets", given)  # an SDK of 0.1 says "none" with an empty array
