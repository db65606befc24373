"""The arguments of the tools: checked on arrival, described for the model that writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TIMEOUT_SECONDS = 300
_LONGEST_SECONDS = 86_400
_CHILDREN = 32
_UNDONE = 1000

Timeout = Annotated[
    float,
    Field(gt=0, le=_LONGEST_SECONDS, description="Interrupt the code after this many seconds. Variables are kept."),
]
Path = Annotated[str, Field(min_length=1, description="Absolute, or relative to /root")]
Encoding = Literal["text", "base64"]


class Arguments(BaseModel):
    """The arguments of any tool."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def schema_for_models(cls) -> dict[str, Any]:
        """The JSON schema without titles, which only repeat the names, and without the docstring of the class."""
        untitled = _untitled(cls.model_json_schema())
        assert isinstance(untitled, dict)
        untitled.pop("description", None)
        return untitled

    @property
    def named(self) -> str | None:
        """The first id of a sandbox or snapshot among the arguments, if there is one."""
        for name in ("sandbox", "other", "winner", "snapshot"):
            value = getattr(self, name, None)
            if isinstance(value, str):
                return value
        return None


class InSandbox(Arguments):
    sandbox: Annotated[
        str | None,
        Field(description="Id of a sandbox or fork. Left out: your default sandbox, made when it is first used."),
    ] = None


class RunPython(InSandbox):
    code: Annotated[str, Field(description="Python source of one cell")]
    timeout_seconds: Timeout = TIMEOUT_SECONDS


class RunBash(InSandbox):
    command: Annotated[str, Field(description="A bash script of one or more lines")]
    timeout_seconds: Timeout = TIMEOUT_SECONDS


class CreateSandbox(Arguments):
    snapshot: Annotated[str | None, Field(description="Id of a snapshot to begin with. Left out: empty.")] = None


class ListSandboxes(Arguments):
    sandbox: Annotated[
        str | None, Field(description="Id of any of your sandboxes. Only needed if you have no default sandbox.")
    ] = None


class CloseSandbox(Arguments):
    sandbox: Annotated[str, Field(description="Id of a sandbox")]


class Fork(InSandbox):
    n: Annotated[int, Field(ge=1, le=_CHILDREN, description="How many copies")] = 1
    reseed: Annotated[bool, Field(description="Give each copy different random numbers")] = False


class DiffArguments(InSandbox):
    other: Annotated[str, Field(description="Id of the sandbox to compare with, usually a fork")]
    paths: Annotated[list[str] | None, Field(description="Only files below these folders. Left out: all.")] = None


class MergeInto(InSandbox):
    winner: Annotated[str, Field(description="Id of the fork whose state is kept; the fork itself ends")]


class SnapshotArguments(InSandbox):
    pass


class Restore(InSandbox):
    snapshot: Annotated[str, Field(description="Id of the snapshot")]


class HistoryArguments(InSandbox):
    pass


class Undo(InSandbox):
    n: Annotated[int, Field(ge=1, le=_UNDONE, description="How many cells to take back")] = 1


class Rewind(InSandbox):
    point: Annotated[str, Field(description="Id of a point, as history shows it")]


class ListFiles(InSandbox):
    path: Path = "."


class ReadFile(InSandbox):
    path: Path
    first_line: Annotated[int, Field(ge=1, description="First line to read of a text file")] = 1
    line_count: Annotated[
        int | None, Field(ge=1, description="Number of lines to read of a text file. Left out: to its end.")
    ] = None
    encoding: Annotated[Encoding, Field(description="base64: the bytes of any file, whole, as a resource")] = "text"


class WriteFile(InSandbox):
    path: Path
    content: str
    encoding: Annotated[Encoding, Field(description="base64: content holds bytes in base64")] = "text"


def _untitled(schema: object) -> object:
    if isinstance(schema, dict):
        return {key: _untitled(value) for key, value in schema.items() if key != "title"}
    return [_untitled(one) for one in schema] if isinstance(schema, list) else schema
