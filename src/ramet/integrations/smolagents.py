"""A sandbox as the executor of a smolagents CodeAgent.

    with SandboxExecutor() as executor:
        CodeAgent(tools=[...], model=model, executor=executor, additional_authorized_imports=["*"]).run("...")

The agent's tools run here, in your process; its code calls them from the sandbox. Imports of the code are not checked:
the walls of the sandbox hold it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ramet import Result, Sandbox, Tool
from ramet.integrations.bounding import bounded
from ramet.integrations.missing import missing
from ramet.integrations.results import OTHER_CHARACTERS, PRINTED_CHARACTERS

try:
    from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor
    from smolagents.serialization import SafeSerializer

    from ramet.integrations.pictures import NotAPicture, open_png
except ImportError as error:
    raise missing("smolagents", "smolagents") from error

_INSIDE = Path(__file__).with_name("smolagents_inside.py")
# Types of smolagents that JSON schema cannot express.
_NO_SCHEMA = ("any", "image", "audio")
# Type names as numpy writes them. Bounded, because one element of "<U999999999" takes 4 GB, whatever is in it.
_NUMPY_TYPE = re.compile(
    r"bool|object|(?:u?int|float|complex)[0-9]{1,3}|[<>|]?[biufc][0-9]{1,2}|[<>|=]?[SU][0-9]{1,4}"
    r"|[<>]?[mM]8(?:\[[0-9]{0,9}[A-Za-z]{1,2}\])?|(?:datetime|timedelta)64(?:\[[0-9]{0,9}[A-Za-z]{1,2}\])?"
)


class SandboxExecutor(PythonExecutor):  # type: ignore[misc] # smolagents has no types
    """Runs an agent's code in a sandbox: one of its own, made with ``options``, or the given one.

    A given sandbox stays open. Its tools are replaced by those of the agent.
    """

    def __init__(self, sandbox: Sandbox | None = None, *, timeout_seconds: float | None = None, **options: Any) -> None:
        self._owned = sandbox is None
        self.sandbox = Sandbox(**options) if sandbox is None else sandbox
        self.state: dict[str, str] = {}  # the agent reads the output of a failed cell from here
        self._timeout_seconds = timeout_seconds
        self._tools: list[Tool] = []
        self._answers: list[object] = []  # final answers of the running cell
        self._prepared = False  # whether the REPL has a function final_answer

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Make the agent's tools, and the agents that it manages, callable in the sandbox. Raises RametError."""
        self._tools = [_given(name, tool) for name, tool in tools.items() if name != "final_answer"]
        final_answer = tools.get("final_answer")
        if final_answer is not None:
            self._tools.append(Tool(self._taking(final_answer), name="ramet_final_answer"))
        self.sandbox.set_tools(self._tools)
        self._prepared = final_answer is None

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables in the sandbox. They travel as the result of a tool. Raises InterpreterError if one cannot."""
        if not variables:
            return
        given = Tool(lambda: variables, name="ramet_variables", description="Variables of the agent")
        self.sandbox.set_tools([*self._tools, given])
        try:
            result = self.sandbox.run_code("globals().update(ramet_variables())")
        finally:
            self.sandbox.set_tools(self._tools)
        if not result.ok:
            raise InterpreterError(_failure(result))

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a cell. Raises InterpreterError if the cell fails; the agent passes its text to the model."""
        if not self._prepared:
            self._prepare()
        self._answers.clear()
        result = self.sandbox.run_code(code_action, timeout=self._timeout_seconds)
        self._prepared = result.state == "kept"
        logs = bounded(result.stdout + (result.stderr if result.ok else ""), PRINTED_CHARACTERS)
        self.state["_print_outputs"] = logs
        if self._answers:
            return CodeOutput(output=self._answers[0], logs=logs, is_final_answer=True)
        if not result.ok:
            raise InterpreterError(_failure(result))
        return CodeOutput(output=_output(result), logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """Close the sandbox unless it was given. The agent's ``cleanup`` calls this."""
        if self._owned:
            self.sandbox.close()

    def __enter__(self) -> SandboxExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    def _prepare(self) -> None:
        result = self.sandbox.run_code(_INSIDE.read_text("utf-8"))
        if not result.ok:
            raise InterpreterError(_failure(result))
        self._prepared = True

    def _taking(self, final_answer: Callable[..., object]) -> Callable[..., None]:
        def ramet_final_answer(arguments: list[Any], named: dict[str, Any]) -> None:
            positional = [SafeSerializer.from_json_safe(_checked(one)) for one in arguments]
            by_name = {name: SafeSerializer.from_json_safe(_checked(one)) for name, one in named.items()}
            self._answers.append(final_answer(*positional, **by_name))

        return ramet_final_answer


def _given(name: str, tool: Any) -> Tool:
    """Wrap a tool of smolagents or a managed agent: both describe their inputs in the same way."""
    inputs: Mapping[str, Mapping[str, Any]] = tool.inputs

    def handler(**arguments: Any) -> object:
        return tool(**arguments)

    schema = {
        "type": "object",
        "properties": {one: _schema(about) for one, about in inputs.items()},
        "required": [one for one, about in inputs.items() if not about.get("nullable")],
    }
    return Tool(handler, name=name, description=tool.description, input_schema=schema)


def _schema(about: Mapping[str, Any]) -> dict[str, Any]:
    types = about["type"] if isinstance(about["type"], list) else [about["type"]]
    schema: dict[str, Any] = {"description": str(about.get("description", ""))}
    if not any(one in _NO_SCHEMA for one in types):
        schema["type"] = [*types, "null"] if about.get("nullable") and "null" not in types else types
    return schema


def _output(result: Result) -> object:
    """The value of the last expression: as a picture if it has a valid one, else as text."""
    for one in result.results:
        if one.what == "value" and one.png is not None:
            try:
                return open_png(one.png)
            except NotAPicture:
                break
    return result.value


def _checked(value: Any) -> Any:
    """Check an answer before smolagents decodes it: code in the sandbox can forge any JSON.

    smolagents would open a picture with any decoder of Pillow, and make an array of any type and so of any size.
    Raises NotAPicture or ValueError.
    """
    if isinstance(value, list):
        return [_checked(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("__type__") == "PIL.Image":
        try:
            return open_png(base64.b64decode(value.get("data", ""), validate=True))
        except (binascii.Error, TypeError) as error:
            raise NotAPicture(f"a picture comes as base64: {error}") from error
    if value.get("__type__") == "ndarray" and not _NUMPY_TYPE.fullmatch(str(value.get("dtype"))):
        raise ValueError("an array in an answer must hold numbers, booleans, times or short texts")
    return {name: _checked(one) for name, one in value.items()}


def _failure(result: Result) -> str:
    if result.state != "kept":
        return result.error.message if result.error is not None else f"Python ended: {result.cause}"
    if result.cause == "timeout":
        return f"Interrupted at its timeout, after {result.duration_seconds:.1f} seconds."
    return bounded(result.stderr, OTHER_CHARACTERS).rstrip("\n") or f"exit code {result.exit_code}"
