"""Arguments that are not allowed are named, with what is allowed, before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.client.arguments import Mount, Template, sandbox_spec
from ramet.errors import InvalidArgument
from ramet.protocol import checks
from ramet.protocol.values.specs import Limits, SandboxSpec

NOTHING: dict[str, Any] = {
    "template": "default",
    "python": None,
    "env": None,
    "cwd": None,
    "mounts": None,
    "memory_mib": None,
    "pids": None,
    "cpus": None,
    "disk_mib": None,
}


def spec_of(**arguments: Any) -> SandboxSpec:
    spec = sandbox_spec(**{**NOTHING, **arguments})
    assert isinstance(spec, SandboxSpec)
    return spec


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("template", "unknown"),
        ("template", ""),
        ("template", 5),
        ("python", "/no/such/python"),
        ("python", "/etc/passwd"),
        ("python", 3.12),
        ("env", {"A=B": "x"}),
        ("env", {"": "x"}),
        ("env", {"A\0": "x"}),
        ("env", {"A": "\0"}),
        ("env", {"A": 1}),
        ("env", {1: "x"}),
        ("env", ["A"]),
        ("env", {"A": "x" * 2_000_000}),
        ("cwd", ""),
        ("cwd", "a\0"),
        ("mounts", {"/data": "/no/such/folder"}),
        ("mounts", {"/data": "/etc/passwd"}),
        ("mounts", {"data": "/tmp"}),
        ("mounts", {"/": "/tmp"}),
        ("mounts", {"//": "/tmp"}),
        ("mounts", {"/proc": "/tmp"}),
        ("mounts", {"//dev/x": "/tmp"}),
        ("mounts", {"/usr/lib/x": "/tmp"}),
        ("mounts", {"/sys/": "/tmp"}),
        ("mounts", {"/data/../proc": "/tmp"}),
        ("mounts", {"/a": "/tmp", "/a/": "/tmp"}),
        ("mounts", {"/data": 5}),
        ("mounts", "/data"),
        ("memory_mib", -1),
        ("memory_mib", 0),
        ("memory_mib", 1.5),
        ("memory_mib", True),
        ("pids", -5),
        ("pids", "many"),
        ("cpus", 0),
        ("cpus", -1),
        ("cpus", float("nan")),
        ("cpus", float("inf")),
        ("disk_mib", 0),
    ],
)
def test_a_bad_argument_is_named(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        spec_of(**{argument: value})
    assert caught.value.argument == argument
    assert argument in caught.value.message
    assert " must " in caught.value.message or caught.value.hint


def test_the_value_of_a_variable_is_never_shown() -> None:
    with pytest.raises(InvalidArgument) as caught:
        spec_of(env={"TOKEN": "secret\0"})
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(spec_of(env={"TOKEN": "secret"}))


def test_good_arguments_become_a_spec_that_survives_its_frame(tmp_path: Path) -> None:
    spec = spec_of(
        template="python-datasci",
        env={"A": "'\"\n\udc80=é"},
        cwd="/tmp",
        mounts={"/data": tmp_path, "/out": Mount(tmp_path, writable=True)},
        memory_mib=512,
        pids=32,
        cpus=0.5,
        disk_mib=100,
    )
    assert spec.limits == Limits(512 * checks.MIB, 32, 0.5, 100 * checks.MIB)
    assert spec.template.python == sys.executable
    assert [mount.writable for mount in spec.mounts] == [False, True]
    assert SandboxSpec.read(spec.header()) == spec


def test_a_template_of_ones_own_is_known_by_name_after_its_first_use() -> None:
    with pytest.raises(InvalidArgument):
        spec_of(template="test-mine")
    spec_of(template=Template("test-mine", preload=["json"]))
    assert spec_of(template="test-mine").template.preload == ("json",)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "default"},
        {"name": "a/b"},
        {"name": ""},
        {"name": "x", "preload": "json"},
        {"name": "x", "preload": ["a-b"]},
        {"name": "x", "preload": ["os; import sys"]},
    ],
)
def test_a_bad_template_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Template(**arguments)


@pytest.mark.parametrize("code", [b"bytes", None, "x" * (64 * checks.MIB + 1)])
def test_bad_code_is_refused(code: object) -> None:
    with pytest.raises(InvalidArgument, match="code"):
        checks.check_code(code)


@pytest.mark.parametrize("code", ["a\0b", "\ud800", "\ufeff1", "é"])
def test_any_character_of_code_travels(code: str) -> None:
    assert checks.check_code(code).decode("utf-8", "surrogatepass") == code


def _refusal(timeout: object) -> InvalidArgument | None:
    try:
        checks.check_timeout(timeout)
    except InvalidArgument as refusal:
        return refusal
    return None


@pytest.mark.parametrize("timeout", [0, 0.0, -0.0, -1, float("nan"), float("inf"), "5", True])
def test_a_bad_timeout_is_refused(timeout: object) -> None:
    with pytest.raises(InvalidArgument, match=f"^timeout must be .* seconds, got {timeout!r}\n") as refused:
        checks.check_timeout(timeout)
    if timeout == float("inf"):
        requirement = "must be at most 31622400"
    else:
        requirement = "must be a number" if isinstance(timeout, str | bool) else "must be more than 0"
    assert requirement in refused.value.message
    assert refused.value.hint is not None
    assert "None" in refused.value.hint


@pytest.mark.parametrize("timeout", [None, 1e-6, 0.5, 3600])
def test_a_good_timeout_passes(timeout: object) -> None:
    assert _refusal(timeout) is None


@pytest.mark.parametrize("language", ["ruby", "", "Python", None, 1])
def test_an_unknown_language_is_refused_with_those_that_are_known(language: object) -> None:
    with pytest.raises(InvalidArgument, match="'python' or 'bash'"):
        checks.check_language(language)
