"""The reference is complete: every public name, error, option and command of the package stands in it."""

import inspect
import re
from pathlib import Path

import pytest

import ramet
from ramet import errors
from ramet.doors.http.documentation import openapi
from ramet.protocol.requests.options import options_of
from ramet.protocol.requests.sandboxes import SandboxOptions

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


def error_classes() -> list[type[errors.RametError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, errors.RametError)]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: str(kind.__name__))
def test_every_error_and_its_code_is_in_the_reference(kind: type[errors.RametError]) -> None:
    assert re.search(rf"`{kind.__name__}` *\| *`{kind.code}`", page("errors.md"))


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    missing = [name for name in ramet.__all__ if not re.search(rf"`{name}\b", pages)]
    assert not missing


def test_every_argument_of_a_sandbox_is_in_the_reference() -> None:
    arguments = [name for name in inspect.signature(ramet.Sandbox).parameters if name != "self"]
    missing = [name for name in arguments if f"| `{name}` |" not in page("sdk.md")]
    assert not missing


@pytest.mark.parametrize("kind", [ramet.Sandbox, ramet.AsyncSandbox])
def test_the_arguments_of_a_sandbox_are_its_options_and_explained_as_these_are(kind: type) -> None:
    options = {name: option for name, option in options_of(SandboxOptions).items() if option.keyword}
    assert set(inspect.signature(kind).parameters) - {"tools", "url", "api_key"} == set(options)
    explained = " ".join(inspect.getdoc(kind).split())  # type: ignore[union-attr]
    missing = [name for name, option in options.items() if f" {name}: {option.help} " not in explained]
    assert not missing


def test_every_field_of_a_new_sandbox_is_in_the_reference() -> None:
    (row,) = [line for line in page("http.md").splitlines() if line.startswith("| POST `/v1/sandboxes` |")]
    fields = openapi.document()["components"]["schemas"]["NewSandbox"]["properties"]
    assert set(re.findall(r"`(\w+)`", row)) == set(fields)


@pytest.mark.parametrize(
    "kind",
    [
        ramet.Result,
        ramet.RichResult,
        ramet.SandboxInfo,
        ramet.SandboxRow,
        ramet.FileInfo,
        ramet.ForkInfo,
        ramet.Diff,
        ramet.FileChange,
        ramet.FileState,
        ramet.NameChange,
        ramet.NameValue,
        ramet.TerminalInfo,
        ramet.ToolCall,
        ramet.ToolCallRecord,
        ramet.Connection,
    ],
)
def test_every_field_of_a_result_is_in_the_reference(kind: type) -> None:
    pages = page("sdk.md") + page("files.md") + page("forks.md") + page("terminals.md")
    travelling = ("read", "header")  # how they come and go, not what they say
    names = [name for name in dir(kind) if not name.startswith("_") and name not in travelling]
    missing = [name for name in names if f"`{name}`" not in pages]
    assert not missing


def test_every_member_of_a_network_and_of_what_is_exposed_is_in_the_reference() -> None:
    kinds = (ramet.SandboxNetwork, ramet.AsyncSandboxNetwork, ramet.Exposed, ramet.AsyncExposed)
    members = {name for kind in kinds for name in dir(kind)}
    missing = [name for name in members if not name.startswith("_") and f"`{name}" not in page("sdk.md")]
    assert not missing


@pytest.mark.parametrize("kind", [ramet.Network, ramet.Secret])
def test_every_argument_of_a_network_and_a_secret_is_in_the_reference(kind: type) -> None:
    missing = [name for name in inspect.signature(kind).parameters if name not in page("sdk.md")]
    assert not missing


def test_every_member_of_a_sandbox_and_a_snapshot_is_in_the_reference() -> None:
    pages = page("sdk.md") + page("forks.md") + page("terminals.md")
    members = {*dir(ramet.Sandbox), *dir(ramet.Snapshot), *dir(ramet.AsyncSandbox), *dir(ramet.AsyncSnapshot)}
    missing = [name for name in members if not name.startswith("_") and f"`{name}" not in pages]
    assert missing in ([], ["create"])  # `create` stands in the example of AsyncSandbox


def test_the_table_of_a_sandbox_leads_to_every_member_once() -> None:
    table = page("sdk.md").partition("| member | |")[2].partition("\n\n")[0]
    told = [name for row in table.splitlines() for name in re.findall(r"`(\w+)", row.split(" | ")[0])]
    assert sorted({name for name in told if told.count(name) > 1}) == []
    assert [name for name in dir(ramet.Sandbox) if not name.startswith("_") and name not in told] == []
