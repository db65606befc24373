"""Bad input: a typed error that names the argument and what is allowed, before anything is started."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from ramet import AsyncSandbox, InvalidArgument, Mount, RametError, Sandbox, SandboxClosed, Secret, Template
from ramet.transport import embedded
from tests.behaviour.faces import AnySandbox

WRONG_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("template", {"template": "no-such-template"}),
    ("template", {"template": 5}),
    ("python", {"python": "/no/such/python"}),
    ("python", {"python": "/etc/passwd"}),
    ("python", {"python": "/bin/true"}),
    ("python", {"python": "/"}),
    ("python", {"python": 3.12}),
    ("mounts", {"mounts": {"/data": "/no/such/folder"}}),
    ("mounts", {"mounts": {"/data": "/etc/passwd"}}),
    ("mounts", {"mounts": {"/data": Mount("/no/such/folder")}}),
    ("mounts", {"mounts": {"relative": "/tmp"}}),
    ("mounts", {"mounts": {"/": "/tmp"}}),
    ("mounts", {"mounts": {"/proc": "/tmp"}}),
    ("mounts", {"mounts": {"/usr/lib": "/tmp"}}),
    ("mounts", {"mounts": {"/data/../proc": "/tmp"}}),
    ("mounts", {"mounts": {"/data": "/tmp", "/data/": "/tmp"}}),
    ("mounts", {"mounts": {"/a\0b": "/tmp"}}),
    ("mounts", {"mounts": {"/a\nupper 4096 1": "/tmp"}}),
    ("mounts", {"mounts": ["/tmp"]}),
    ("mounts", {"mounts": {"/data": 5}}),
    ("memory_mib", {"memory_mib": -1}),
    ("memory_mib", {"memory_mib": 0}),
    ("memory_mib", {"memory_mib": 1}),
    ("memory_mib", {"memory_mib": 1.5}),
    ("memory_mib", {"memory_mib": True}),
    ("memory_mib", {"memory_mib": 1 << 100}),
    ("pids", {"pids": -5}),
    ("pids", {"pids": 0}),
    ("pids", {"pids": "many"}),
    ("cpus", {"cpus": -1}),
    ("cpus", {"cpus": 0}),
    ("cpus", {"cpus": float("nan")}),
    ("cpus", {"cpus": float("inf")}),
    ("disk_mib", {"disk_mib": -1}),
    ("disk_mib", {"disk_mib": 0}),
    ("env", {"env": {"A": "a\0b"}}),
    ("env", {"env": {"A=B": "c"}}),
    ("env", {"env": {"": "c"}}),
    ("env", {"env": {"A": 5}}),
    ("env", {"env": {"A": "\ud800"}}),
    ("env", {"env": {"A": "x" * (2 << 20)}}),
    ("env", {"env": ["A=b"]}),
    ("network", {"network": "api.example"}),
    ("network", {"network": True}),
    ("network", {"network": 443}),
    ("network", {"network": ["*"]}),
    ("network", {"network": ["https://api.example/path"]}),
    ("network", {"network": ["api.example:0"]}),
    ("network", {"network": ["api.example:http"]}),
    ("network", {"network": ["-"]}),
    ("network", {"network": [""]}),
    ("network", {"network": [443]}),
    ("network", {"network": {"api.example": 443}}),
    ("network", {"network": [f"h{number}.example" for number in range(501)]}),
    ("secrets", {"secrets": {"KEY": Secret("some value", hosts=["api.example"])}}),
    ("secrets", {"network": ["a.example"], "secrets": {"KEY": Secret("some value", hosts=["b.example"])}}),
    ("secrets", {"network": ["a.example:443"], "secrets": {"KEY": Secret("some value", hosts=["a.example"])}}),
    ("secrets", {"network": ["10.0.0.1"], "secrets": {"KEY": Secret("some value", hosts=["10.0.0.1"])}}),
    ("secrets", {"network": "open", "secrets": {"KEY": "value"}}),
    ("secrets", {"network": "open", "secrets": {"a b": Secret("some value", hosts=["a.example"])}}),
    ("secrets", {"network": "open", "secrets": ["KEY"]}),
    (
        "secrets",
        {"network": "open", "env": {"KEY": "1"}, "secrets": {"KEY": Secret("some value", hosts=["a.example"])}},
    ),
    ("cwd", {"cwd": ""}),
    ("cwd", {"cwd": "a\0b"}),
    ("cwd", {"cwd": 5}),
]


@pytest.mark.parametrize("face", [Sandbox, AsyncSandbox])
@pytest.mark.parametrize(("argument", "options"), WRONG_OPTIONS, ids=lambda value: repr(value)[:60])
def test_a_wrong_option_is_named_with_what_is_allowed_before_anything_starts(
    face: Callable[..., object], argument: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("an engine was started or asked")

    monkeypatch.setattr(embedded, "_start_process", refuse)
    monkeypatch.setattr(embedded.EmbeddedEngine, "connect", refuse)
    with pytest.raises(InvalidArgument) as refused:
        face(**options)
    assert refused.value.argument == argument
    assert argument in refused.value.message
    assert " must " in refused.value.message or refused.value.hint
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("argument", "arguments"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "a/b"}),
        ("name", {"name": "x" * 65}),
        ("name", {"name": "default"}),
        ("name", {"name": 5}),
        ("preload", {"name": "t", "preload": "numpy"}),
        ("preload", {"name": "t", "preload": ["not a name"]}),
        ("preload", {"name": "t", "preload": ["os; evil()"]}),
    ],
)
def test_a_wrong_template_is_refused_when_it_is_made(argument: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Template(**arguments)
    assert refused.value.argument == argument


WRONG_CELLS: list[tuple[str, dict[str, Any]]] = [
    ("language", {"language": "ruby"}),
    ("language", {"language": None}),
    ("language", {"language": ["python"]}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": -1}),
    ("timeout", {"timeout": float("nan")}),
    ("timeout", {"timeout": float("inf")}),
    ("timeout", {"timeout": "5"}),
    ("code", {"code": b"bytes"}),
    ("code", {"code": None}),
    ("code", {"code": "#" * (65 << 20)}),
]


@pytest.mark.every_face
def test_a_wrong_cell_is_refused_and_the_sandbox_goes_on(any_sandbox: AnySandbox) -> None:
    def streamed(**arguments: Any) -> object:
        return list(any_sandbox.run_code_stream(**arguments))

    any_sandbox.run_code("kept = 1")
    for argument, wrong in WRONG_CELLS:
        arguments = {"code": "open('/root/ran', 'w')", **wrong}
        assert refused_argument(any_sandbox.run_code, arguments) == argument, repr(wrong)[:80]
        assert refused_argument(streamed, arguments) == argument, repr(wrong)[:80]
        assert any_sandbox.run_code("kept").value == "1", repr(wrong)[:80]
    assert not any_sandbox.files.exists("/root/ran")


def refused_argument(call: Callable[..., object], arguments: dict[str, Any]) -> str | None:
    """The argument that the refusal names; None if nothing was refused."""
    try:
        call(**arguments)
    except InvalidArgument as refusal:
        return refusal.argument
    return None


@pytest.mark.every_face
@pytest.mark.parametrize(("code", "line"), [("x = 1\ny = '\0'", 2), ("a\nb\n'\udfff'", 3), ("\0", 1)])
def test_characters_that_no_code_has_are_a_result_that_names_the_line(
    any_sandbox: AnySandbox, code: str, line: int
) -> None:
    result = any_sandbox.run_code(code)
    assert result.error is not None
    assert (result.ok, result.error.name, result.state) == (False, "SyntaxError", "kept")
    assert f"line {line}" in result.stderr
    assert any_sandbox.run_code("\ufeff'with a byte order mark'").ok


@pytest.mark.deep("load")
def test_a_cell_of_fifty_megabytes_runs(any_sandbox: AnySandbox) -> None:
    code = "x = '" + "y" * 50_000_000 + "'\nlen(x)"
    assert any_sandbox.run_code(code, timeout=80).value == "50000000"
    assert any_sandbox.run_code("1").value == "1"


def test_deeply_nested_code_is_an_error_of_the_cell(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("(" * 5000 + ")" * 5000, timeout=60)
    assert result.exit_code != 0
    assert any_sandbox.run_code("1").value == "1"


@pytest.mark.every_face
def test_a_closed_sandbox_says_so_for_every_call(any_sandbox: AnySandbox) -> None:
    any_sandbox.close()
    any_sandbox.close()
    calls: list[Callable[[], object]] = [
        lambda: any_sandbox.run_code("1"),
        lambda: list(any_sandbox.run_code_stream("1")),
        any_sandbox.interrupt,
        any_sandbox.info,
        lambda: any_sandbox.upload(b"", "/root/f"),
        lambda: any_sandbox.download("/root/f"),
        lambda: any_sandbox.files.read("/root/f"),
        lambda: list(any_sandbox.files.read_stream("/root/f")),
        lambda: any_sandbox.files.write("/root/f", b""),
        any_sandbox.files.list,
        lambda: any_sandbox.files.stat("/root"),
        lambda: any_sandbox.files.exists("/root"),
        lambda: any_sandbox.files.mkdir("/root/d"),
        lambda: any_sandbox.files.remove("/root/d"),
        lambda: any_sandbox.files.rename("/root/a", "/root/b"),
    ]
    for call in calls:
        with pytest.raises(SandboxClosed):
            call()


def test_a_closed_sandbox_cannot_be_entered_again() -> None:
    sandbox = Sandbox()
    with sandbox:
        pass
    with pytest.raises(SandboxClosed):
        with sandbox:
            pass


def test_an_async_sandbox_that_was_never_entered_says_how_to() -> None:
    with pytest.raises(SandboxClosed, match="async with"):
        AsyncSandbox().run_code_stream("1")


def test_the_smallest_memory_limit_that_is_allowed_runs_cells_and_survives_a_bomb(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    small = make_sandbox(memory_mib=64)
    assert small.run_code("6 * 7").value == "42"
    bomb = small.run_code("x = bytearray(500 << 20)", timeout=60)
    assert bomb.cause == "out of memory" or (bomb.error is not None and bomb.error.name == "MemoryError")
    assert small.run_code("6 * 7").value == "42"


def test_the_smallest_limits_that_are_allowed_work(make_sandbox: Callable[..., Sandbox]) -> None:
    small = make_sandbox(pids=4, cpus=0.1, disk_mib=1)
    assert small.run_code("6 * 7").value == "42"
    assert small.run_code("echo from bash", language="bash").stdout == "from bash\n"


@pytest.mark.deep("load")
def test_more_sandboxes_than_the_machine_has_room_for_is_a_clear_error_and_earlier_ones_live() -> None:
    """Room is made small by a limit on descriptors, which the engine inherits; running out of memory looks the same."""
    program = textwrap.dedent("""
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (2200, 2200))
        from ramet import RametError, Sandbox
        made = []
        try:
            while len(made) < 800:
                made.append(Sandbox())
        except RametError as error:
            print("refused", type(error).__name__, error)
        else:
            sys.exit("never refused")
        assert made
        for number, sandbox in enumerate(made):
            assert sandbox.run_code(f"{number}").value == str(number)
        for sandbox in made:
            sandbox.close()
        with Sandbox() as again:
            assert again.run_code("6 * 7").value == "42"
        print("earlier ones lived")
    """)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "earlier ones lived" in ended.stdout
    assert "refused LimitReached" in ended.stdout
    assert "Traceback" not in ended.stdout


@pytest.mark.deep("load")
def test_a_hundred_sandboxes_live_at_once_and_answer(make_sandbox: Callable[..., Sandbox]) -> None:
    sandboxes = [make_sandbox() for _ in range(100)]
    for number, sandbox in enumerate(sandboxes):
        sandbox.run_code(f"x = {number}")
    assert [sandbox.run_code("x").value for sandbox in sandboxes] == [str(number) for number in range(100)]


def test_every_error_can_be_pickled_with_all_it_says() -> None:
    import pickle

    with pytest.raises(RametError) as refused:
        Sandbox(memory_mib=-1)
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (type(copy), str(copy), copy.code, copy.argument) == (
        InvalidArgument,
        str(refused.value),
        "invalid_argument",
        "memory_mib",
    )
