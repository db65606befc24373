"""What a user may ask for survives its way as a header, and what nobody may ask for is named."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from ramet.errors import InvalidArgument
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.specs import Lifetime, MountSpec
from ramet.transport.resolving import resolve

EVERYTHING = SandboxOptions(
    template="mine",
    preload=("json", "os.path"),
    python="/usr/bin/python3",
    env=(("A", "1"), ("B", "zwei")),
    cwd="/tmp",
    mounts=(MountSpec("/a", "/b", True),),
    memory_mib=100,
    pids=10,
    cpus=0.5,
    disk_mib=20,
    timeout_seconds=60,
    idle_timeout_seconds=1.5,
    persistent=True,
)


@pytest.mark.parametrize("request_", [SandboxOptions(), EVERYTHING])
def test_a_request_survives_its_header(request_: SandboxOptions) -> None:
    assert SandboxOptions.read(json.loads(json.dumps(request_.header()))) == request_


def test_what_is_not_asked_for_is_not_sent() -> None:
    assert SandboxOptions().header() == {}


def test_null_means_the_usual_where_it_may() -> None:
    nothing = dict.fromkeys(["preload", "python", "cwd", "memory_mib", "pids", "cpus", "disk_mib", "timeout_seconds"])
    assert SandboxOptions.read(nothing) == SandboxOptions()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("surprise", 1),
        ("owner", "key_of_another"),
        ("template", None),
        ("template", 5),
        ("preload", "json"),
        ("preload", [1]),
        ("python", 3),
        ("env", ["A"]),
        ("env", {"A": 1}),
        ("env", None),
        ("cwd", 1),
        ("mounts", {}),
        ("mounts", [1]),
        ("mounts", [{"source": "/a"}]),
        ("memory_mib", 1.5),
        ("memory_mib", True),
        ("pids", "many"),
        ("cpus", "2"),
        ("disk_mib", []),
        ("timeout_seconds", "60"),
        ("idle_timeout_seconds", False),
        ("persistent", 1),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        SandboxOptions.read({field: value})
    assert refused.value.argument == field
    assert field in refused.value.message


def test_the_environment_is_not_shown() -> None:
    assert "zwei" not in repr(EVERYTHING)


def test_a_resolved_request_has_an_interpreter_limits_and_an_owner() -> None:
    spec = resolve(SandboxOptions(memory_mib=100, timeout_seconds=60), owner="key_1")
    assert spec.template.python == sys.executable
    assert spec.limits.memory_bytes == 100 << 20
    assert (spec.owner, spec.lifetime) == ("key_1", Lifetime(60, None))
    again = resolve(SandboxOptions(template="mine", preload=("json",)), spec.template.interpreter)
    assert (again.template.name, again.template.preload, again.template.builtin) == ("mine", ("json",), False)


@pytest.mark.parametrize(
    ("argument", "fields"),
    [
        ("template", {"template": "unknown"}),
        ("template", {"template": "default", "preload": ()}),
        ("template", {"template": "a/b", "preload": ()}),
        ("preload", {"template": "mine", "preload": ("no name",)}),
        ("python", {"python": "/no/such"}),
        ("memory_mib", {"memory_mib": 1}),
        ("cwd", {"cwd": "a\0b"}),
        ("env", {"env": (("A=", "b"),)}),
        ("timeout_seconds", {"timeout_seconds": -1}),
        ("idle_timeout_seconds", {"idle_timeout_seconds": 0}),
    ],
)
def test_a_request_that_makes_no_sense_is_not_resolved(argument: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        resolve(SandboxOptions(**fields))
    assert refused.value.argument == argument
