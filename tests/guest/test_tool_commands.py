"""Tools in bash: commands with flags, JSON and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest.guest_driver import Guest, Outcome
from tests.guest.tool_engine import Blob, Call, Failure, ToolEngine, encode, tool

PROPERTIES = {
    "sku": {"type": "string", "description": "the code of the\nproduct"},
    "days": {"type": "integer", "default": 3},
    "price": {"type": "number"},
    "fresh_only": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}},
    "where": {"type": "object"},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "any": {},
    "mode": {"enum": ["fast", "slow"]},
}
FETCH = tool("fetch", "Retrieve daily sales.\n\nBy product.", PROPERTIES, ["sku"])
FETCH["input_schema"]["$defs"] = {"size": {"type": "integer"}}
TOOLS = [FETCH, tool("price-of", "The price"), tool("echo", "Says it back", {"text": {"type": "string"}}), tool("fail")]


def handler(call: Call) -> Any:
    if call.tool == "fail":
        raise Failure("error", "no such sku")
    if call.tool == "price-of":
        return call.accepts
    if call.arguments.get("sku") == "bytes":
        return Blob(encode({"$ramet": 0}, [("bytes", b"\0raw\xff")]))
    if call.arguments.get("sku") == "table":
        rows = json.dumps({"columns": ["a", "b"], "data": [[1, "x"], [2, None]]}).encode()
        return Blob(encode([{"$ramet": 0}, {"$ramet": 1}], [("records:pandas", rows), ("bytes", b"abc")]))
    return call.arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guest")


@pytest.fixture(scope="module")
def engine() -> Iterator[ToolEngine]:
    engine = ToolEngine(handler)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def guest(folder: Path, engine: ToolEngine) -> Iterator[Guest]:
    guest = Guest(cwd=str(folder), commands=str(folder / "run" / "bin"))
    engine.give(guest, TOOLS)
    yield guest
    guest.close()


def bash(guest: Guest, script: str, exit_code: int = 0) -> Outcome:
    outcome = guest.run(script, "bash")
    assert outcome.exit_code == exit_code, outcome.stderr
    return outcome


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("--sku ABC123", {"sku": "ABC123"}),
        ("--sku=A=B", {"sku": "A=B"}),
        ("--sku 007 --days -3 --price 2", {"sku": "007", "days": -3, "price": 2}),
        ("--sku a --price=1e3 --fresh_only", {"sku": "a", "price": 1000.0, "fresh_only": True}),
        ("--fresh-only --sku a", {"sku": "a", "fresh_only": True}),
        ("--no-fresh-only --sku a", {"sku": "a", "fresh_only": False}),
        ("--fresh-only false --sku a", {"sku": "a", "fresh_only": False}),
        ("--fresh-only=true --sku a", {"sku": "a", "fresh_only": True}),
        ("--sku a --tags x --tags 1", {"sku": "a", "tags": ["x", "1"]}),
        (
            """--sku a --tags '["x", "y"]' --sizes 3 --sizes '[4, 5]'""",
            {"sku": "a", "tags": ["x", "y"], "sizes": [3, 4, 5]},
        ),
        ("""--sku a --where '{"b": [1]}'""", {"sku": "a", "where": {"b": [1]}}),
        ("--sku a --limit null --any 3", {"sku": "a", "limit": None, "any": 3}),
        ("--sku a --limit 4 --any three --mode fast", {"sku": "a", "limit": 4, "any": "three", "mode": "fast"}),
        ("""--json '{"sku": "a", "days": 1}'""", {"sku": "a", "days": 1}),
        ("""--json '{"sku": "a", "days": 1}' --days 2""", {"sku": "a", "days": 2}),
        ("""--json - <<< '{"sku": "ä"}'""", {"sku": "ä"}),
        ("""<<< '{"sku": "b"}'""", {"sku": "b"}),
        ("a 5", {"sku": "a", "days": 5}),
        ("--days 5 a", {"sku": "a", "days": 5}),
        ("-- --odd", {"sku": "--odd"}),
    ],
)
def test_flags_follow_the_schema(guest: Guest, words: str, arguments: dict[str, Any]) -> None:
    outcome = bash(guest, f"fetch {words}")
    assert json.loads(outcome.stdout) == arguments


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--sku is missing"),
        ("--nope 1", "there is no option --nope"),
        ("--sku", "--sku needs a value"),
        ("--sku a --days many", "--days needs INTEGER, not 'many'"),
        ("--sku a --days 1.5", "--days needs INTEGER, not '1.5'"),
        ("--sku a --sizes x", "--sizes needs INTEGER, not 'x'"),
        ("--sku a --where 3", "--where needs JSON, not '3'"),
        ("--sku a --no-fresh-only=1", "--no-fresh-only takes no value"),
        ("--json '{'", "the arguments must be one JSON object, but they are not JSON: "),
        ("--json '[]'", "the arguments must be one JSON object"),
        ("a 1 2 true x 3 '{}' 4 5 fast more", "'more' is one argument too many"),
    ],
)
def test_misuse_is_told_and_ends_with_two(guest: Guest, engine: ToolEngine, words: str, message: str) -> None:
    before = len(engine.calls)
    outcome = bash(guest, f"fetch {words}", exit_code=1)
    assert outcome.stderr.startswith(f"fetch: {message}")
    assert outcome.stderr.endswith("\n\nhint: fetch --help\n")
    assert outcome.stdout == ""
    assert len(engine.calls) == before


def test_a_failed_call_ends_with_one_and_says_why_on_stderr(guest: Guest) -> None:
    outcome = bash(guest, "fail", exit_code=1)
    assert (outcome.stdout, outcome.stderr) == ("", "fail: no such sku\n")


def test_results_are_json_for_people_and_programs(guest: Guest) -> None:
    assert bash(guest, "fetch --sku 'ä\"'").stdout == '{\n  "sku": "ä\\""\n}\n'
    assert bash(guest, "price-of").stdout == "[]\n"
    assert bash(guest, "fetch --sku bytes | od -An -tx1").stdout.split() == ["00", "72", "61", "77", "ff"]
    table = json.loads(bash(guest, "fetch --sku table").stdout)
    assert table == [[{"a": 1, "b": "x"}, {"a": 2, "b": None}], "YWJj"]


def test_help_tells_of_every_option(guest: Guest) -> None:
    text = bash(guest, "fetch --help").stdout
    assert text.startswith("usage: fetch --sku TEXT [--days INTEGER] [--price NUMBER] [--fresh_only/--no-fresh_only] ")
    assert "\n\nRetrieve daily sales.\n\nBy product.\n\noptions:\n" in text
    assert "  --sku TEXT " in text
    assert "the code of the product (required)\n" in text
    assert "(default 3)\n" in text
    assert "one of fast, slow\n" in text
    assert "--json JSON" in text
    assert bash(guest, "fetch -h").stdout == text
    assert bash(guest, "ramet-tool fetch --help").stdout == text


def test_one_command_lists_all_tools_and_calls_any(guest: Guest) -> None:
    assert bash(guest, "ramet-tool").stdout == (
        "fetch     Retrieve daily sales.\nprice-of  The price\necho      Says it back\nfail\n"
    )
    assert bash(guest, "ramet-tool fetch --sku a").stdout == '{\n  "sku": "a"\n}\n'
    assert "there is no tool 'nope'" in bash(guest, "ramet-tool nope", exit_code=1).stderr


def test_a_tool_never_stands_in_for_a_command_of_the_system(guest: Guest) -> None:
    assert bash(guest, "echo plain; env echo plain").stdout == "plain\nplain\n"
    assert bash(guest, "ramet-tool echo plain").stdout == '{\n  "text": "plain"\n}\n'


def test_commands_work_in_pipes_loops_and_programs_with_any_environment(guest: Guest, folder: Path) -> None:
    assert bash(guest, "fetch --sku a | head -1").stdout == "{\n"
    found = bash(guest, "printf '%s\\n' a b c | xargs -P 3 -n 1 fetch --sku | grep -c sku").stdout
    assert found == "3\n"
    script = "printf 'a\\nb\\n' | while read x; do fetch --sku $x; done | grep sku"
    assert bash(guest, script).stdout == '  "sku": "a"\n  "sku": "b"\n'
    # Without parameters there is nothing to read: what is on standard input belongs to somebody else.
    assert bash(guest, "printf '1\\n2\\n' | while read x; do price-of > /dev/null; echo $x; done").stdout == "1\n2\n"
    assert bash(guest, f"env -i {folder}/run/bin/fetch a").stdout == '{\n  "sku": "a"\n}\n'
    assert bash(guest, "PYTHONHOME=/nonexistent PYTHONPATH=/nonexistent fetch a").stdout == '{\n  "sku": "a"\n}\n'
    assert guest.run("!fetch a").stdout == '{\n  "sku": "a"\n}\n'
    code = "import subprocess\nsubprocess.run(['fetch', 'a'], capture_output=True, text=True).stdout"
    assert guest.run(code).value == repr('{\n  "sku": "a"\n}\n')


def test_a_module_of_the_users_in_the_current_folder_is_not_loaded(guest: Guest, folder: Path) -> None:
    for name in ("struct", "ramet_guest", "errno"):
        (folder / f"{name}.py").write_text("raise SystemExit('wrong module')\n")
    try:
        assert bash(guest, "fetch a").stdout == '{\n  "sku": "a"\n}\n'
    finally:
        for name in ("struct", "ramet_guest", "errno"):
            (folder / f"{name}.py").unlink()


def test_commands_come_and_go_with_their_tools(
    start_guest: Callable[..., Guest], engine: ToolEngine, tmp_path: Path
) -> None:
    commands = tmp_path / "run" / "bin"
    commands.mkdir(parents=True)
    (commands / "left-by-another-process").symlink_to("ramet-tool")
    guest = start_guest(commands=str(commands))
    path = guest.run("echo $PATH", "bash").stdout
    engine.give(guest, [tool("a"), tool("b")])
    assert bash(guest, "echo $PATH").stdout == f"{path.rstrip()}:{commands}\n"
    assert bash(guest, "a && b").exit_code == 0
    engine.give(guest, [tool("b"), tool("c")])
    assert bash(guest, "b && c").exit_code == 0
    assert sorted(file.name for file in commands.iterdir()) == ["b", "c", "ramet-tool"]
    assert guest.configure(env={"PATH": "/usr/bin:/bin"}) is None
    assert bash(guest, "echo $PATH && c").stdout.startswith(f"/usr/bin:/bin:{commands}\n")
    engine.give(guest, [])
    assert bash(guest, "echo $PATH").stdout == "/usr/bin:/bin\n"
    assert list(commands.iterdir()) == []
    assert bash(guest, "b", exit_code=127)


def test_a_disk_on_which_commands_cannot_be_written_leaves_the_functions(
    start_guest: Callable[..., Guest], engine: ToolEngine, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("a file in the place of the folder")
    guest = start_guest(commands=str(tmp_path / "run" / "bin"))
    engine.give(guest, [tool("price-of")])
    outcome = guest.run("price_of()")
    assert outcome.value is not None
    assert "NotADirectoryError" in outcome.stderr
