"""What people type out of habit is answered with what it is called here, and help() explains everything there is."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from ramet import AsyncForks, AsyncSandbox, ForkInfo, Forks, InvalidArgument, Sandbox
from ramet.client.asynchronous.files import AsyncFiles
from ramet.client.blocking.files import Files
from ramet.isolation.files import interpreter
from ramet.transport import resolving

FACES = (Sandbox, AsyncSandbox)
INFO = ForkInfo(0.0, 0.0, 0, 0)


def made(kind: Any) -> Any:
    """A handle of nothing."""
    return kind.__new__(kind)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kill", "sandbox.close()"),
        ("run", "sandbox.run_code(code)"),
        ("commands", 'sandbox.run_code(command, language="bash")'),
    ],
)
@pytest.mark.parametrize("kind", FACES)
def test_members_of_other_libraries_are_answered_with_ours(kind: type, name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(made(kind), name)
    waiting = "await " if kind is AsyncSandbox else ""
    assert str(refused.value) == f"{kind.__name__!r} object has no attribute {name!r}: write {waiting}{meant}"


def test_a_member_that_nobody_knows_is_refused_as_always() -> None:
    with pytest.raises(AttributeError, match="'Sandbox' object has no attribute 'nonsense'$"):
        _ = made(Sandbox).nonsense


def test_children_of_a_fork_are_a_list_that_says_how_to_take_one() -> None:
    children: Any = Forks([], INFO)
    with pytest.raises(AttributeError, match=r"write sandbox\.fork\(\)\[0\]\.run_code"):
        children.run_code("1")
    awaited: Any = AsyncForks([], INFO)
    with pytest.raises(AttributeError, match=r"write \(await sandbox\.fork\(\)\)\[0\]\.files"):
        _ = awaited.files
    with pytest.raises(AttributeError, match="'Forks' object has no attribute 'nonsense'$"):
        _ = children.nonsense
    assert children == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [("timeout", "timeout_seconds"), ("memory", "memory_mib"), ("networks", "network"), ("environment", "env")],
)
async def test_an_unknown_argument_is_answered_with_the_one_that_was_meant(name: str, meant: str) -> None:
    told = rf"unexpected keyword argument '{name}'; did you mean '{meant}'\?"
    makers: list[Any] = [Sandbox, AsyncSandbox]
    for make in makers:
        with pytest.raises(TypeError, match=told):
            make(**{name: 1})
        with pytest.raises(TypeError, match="unexpected keyword argument 'zzz'$"):
            make(zzz=1)
    create: Any = AsyncSandbox.create
    assert inspect.iscoroutinefunction(create)
    with pytest.raises(TypeError, match=told):
        await create(**{name: 1})


def test_a_sandbox_cannot_be_pickled_and_says_what_to_do() -> None:
    for kind in FACES:
        with pytest.raises(
            TypeError, match=rf"(?s)cannot pickle a {kind.__name__}: .*{kind.__name__}\.connect\(id\)"
        ) as refused:
            pickle.dumps(made(kind))
        assert "hint:" in str(refused.value)


@pytest.mark.parametrize("kind", FACES)
def test_the_docstring_of_the_class_explains_every_argument_and_attribute(kind: type) -> None:
    told = inspect.getdoc(kind) or ""
    arguments = [name for name in inspect.signature(kind).parameters if name != "self"]
    assert len(arguments) == 22
    attributes = ["id", "files", "network", "fork_info", "tools"]
    assert [name for name in (*arguments, *attributes) if not re.search(rf"^ +{name}: [A-Z\"`]", told, re.M)] == []


@pytest.mark.parametrize("kind", [*FACES, Files, AsyncFiles])
def test_every_public_member_has_a_docstring(kind: type) -> None:
    members = {name: value for name, value in vars(kind).items() if not name.startswith("_") and name != "fork_info"}
    assert [name for name in members if not inspect.getdoc(getattr(kind, name))] == []


def test_both_faces_have_the_same_members_with_the_same_arguments() -> None:
    for plain, awaited in ((Sandbox, AsyncSandbox), (Files, AsyncFiles)):
        names = {name for name in vars(plain) if not name.startswith("_")}
        assert names == {name for name in vars(awaited) if not name.startswith("_")} - {"create", "id", "fork_info"}
        for name in names:
            one, other = getattr(plain, name), getattr(awaited, name)
            if callable(one):
                assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters)


def test_more_memory_than_the_machine_has_is_refused_with_a_sentence() -> None:
    most = resolving.machine_memory_bytes() // 2**20
    told = rf"^memory_mib must be at most {most} \(this machine has {most} MiB of memory\), got {most + 1}$"
    for kind in FACES:
        with pytest.raises(InvalidArgument, match=told) as refused:
            kind(memory_mib=most + 1)
        assert refused.value.argument == "memory_mib"
    resolving.check_memory_mib(most)


def test_a_program_that_is_no_python_is_not_answered_with_our_own_source() -> None:
    with pytest.raises(InvalidArgument) as refused:
        interpreter.find(str(Path("/bin/ls").resolve()))
    assert "import" not in str(refused.value)
    assert len(str(refused.value)) < 300
