"""A whole agent loop: a model writes code, a sandbox runs it, and the model reads what came back.

It runs offline. ScriptedModel plays the model: it reads the results of its calls and decides on the next one, as a
language model would. To use a real one, write a class with the same method ``reply``: send ``messages`` and ``tools``
to your provider, and turn the answer into a ``Reply``.

The loop shows what every agent needs:

- the sandbox keeps its state between calls, so the model works in small steps;
- an error in the code is text for the model to read, not an exception of this program;
- a wrong call (no such tool, a missing argument) is answered, too, and the model can correct itself;
- the code can call a function of this program (``fetch_orders``) and reaches nothing else: no files, no network;
- ``try_ways`` runs each way in a fork of the sandbox, and ``keep`` continues with one of them;
- everything is bounded: time and memory of the code, length of what the model reads, number of steps.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet import Forks, Result, Sandbox

STEPS_AT_MOST = 20
CELL_SECONDS = 30
SHOWN_CHARACTERS = 4000


@dataclass(frozen=True)
class ToolCall:
    """The model wants a tool to be run."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ToolResult:
    """What the model reads about one of its calls."""

    call: ToolCall
    text: str
    failed: bool = False


@dataclass(frozen=True)
class Reply:
    """A turn of the model: calls to run, or a text that ends the conversation."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


Message = str | Reply | tuple[ToolResult, ...]  # the question, a turn of the model, the results of its calls


class Model(Protocol):
    def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply: ...


# --- the tools of the model ------------------------------------------------------------------------------------------

TOOLS: list[dict[str, Any]] = [
    {
        "name": "run_python",
        "description": "Run Python code. Variables stay. fetch_orders(region) returns a list of dicts.",
        "input_schema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
    {
        "name": "try_ways",
        "description": "Run each piece of code in a copy of the current state. `ways` maps a name to code.",
        "input_schema": {"type": "object", "properties": {"ways": {"type": "object"}}, "required": ["ways"]},
    },
    {
        "name": "keep",
        "description": "Continue from the state of one of the ways that were tried.",
        "input_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
]


class Workbench:
    """The sandbox of one conversation, and the tools that work on it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._forks: Forks | None = None
        self._ways: dict[str, Sandbox] = {}
        self._actions: dict[str, Callable[[Mapping[str, Any]], tuple[str, bool]]] = {
            "run_python": self._run_python,
            "try_ways": self._try_ways,
            "keep": self._keep,
        }

    def answer(self, call: ToolCall) -> ToolResult:
        """Run one call. What the model did wrong becomes text that it can read."""
        action = self._actions.get(call.name)
        if action is None:
            return ToolResult(call, f"there is no tool {call.name!r}; tools: {', '.join(self._actions)}", failed=True)
        try:
            text, failed = action(call.arguments)
        except (KeyError, TypeError, ValueError) as error:
            return ToolResult(call, f"these arguments do not fit {call.name}: {error!r}", failed=True)
        return ToolResult(call, text, failed)

    def _run_python(self, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        result = self._sandbox.run_code(arguments["code"], timeout=CELL_SECONDS)
        return for_the_model(result), not result.ok

    def _try_ways(self, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        ways: dict[str, str] = dict(arguments["ways"])
        self.drop_ways()
        self._forks = self._sandbox.fork(len(ways))
        self._ways = dict(zip(ways, self._forks, strict=True))
        results = {name: self._ways[name].run_code(code, timeout=CELL_SECONDS) for name, code in ways.items()}
        return json.dumps({name: for_the_model(result) for name, result in results.items()}), False

    def _keep(self, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        self._sandbox.merge_into(self._ways[arguments["name"]])
        self.drop_ways()
        return f"the sandbox is now in the state of {arguments['name']!r}", False

    def drop_ways(self) -> None:
        if self._forks is not None:
            self._forks.close()
        self._forks, self._ways = None, {}


def for_the_model(result: Result) -> str:
    """Output, errors and the value of a cell in one text, cut in the middle if it is long."""
    parts = [result.stdout, result.stderr, f"value: {result.value}" if result.value is not None else ""]
    if result.cause == "timeout":
        parts.append(f"The code was interrupted after {CELL_SECONDS} seconds.")
    text = "\n".join(part.rstrip("\n") for part in parts if part) or "(no output)"
    if len(text) > SHOWN_CHARACTERS:
        half = SHOWN_CHARACTERS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return text


# --- the loop --------------------------------------------------------------------------------------------------------


@dataclass
class Conversation:
    """A question, and all turns since."""

    question: str
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append(self.question)

    def run(self, model: Model, sandbox: Sandbox) -> str:
        """Let model and sandbox take turns until the model answers."""
        workbench = Workbench(sandbox)
        try:
            for _ in range(STEPS_AT_MOST):
                reply = model.reply(self.messages, TOOLS)
                self.messages.append(reply)
                if not reply.calls:
                    return reply.text
                self.messages.append(tuple(workbench.answer(call) for call in reply.calls))
        finally:
            workbench.drop_ways()
        raise RuntimeError(f"the model did not answer within {STEPS_AT_MOST} steps")


# --- a function of this program that code in the sandbox can call ----------------------------------------------------


def fetch_orders(region: str) -> list[dict[str, int]]:
    """All orders of a region, this year"""
    growth = {"north": 4, "south": 9}[region]
    return [
        {"month": month, "cents": 100 * (200 + growth * month + order)} for month in range(1, 13) for order in (0, 5)
    ]


# --- the scripted model ----------------------------------------------------------------------------------------------

LOAD = """
orders = fetch_orders(region="south")
months = {{}}
for order in orders:
    months[order["month"]] = months.get(order["month"], 0) + order[{column!r}]
series = [months[month] for month in sorted(months)]
len(series)
"""

# Each way defines a forecast, and prints how far off it is for the last month that is known.
SCORE = "print(abs(forecast(series[:-1]) - series[-1]))"
WAYS = {
    "mean of all months": f"def forecast(known): return sum(known) / len(known)\n{SCORE}",
    "same as the month before": f"def forecast(known): return known[-1]\n{SCORE}",
    "the last step again": f"def forecast(known): return known[-1] + (known[-1] - known[-2])\n{SCORE}",
    "a library that is missing": f"from prophet_of_sales import forecast\n{SCORE}",
}


class ScriptedModel:
    """Plays a model: decides by the last result what to do next. Its first guess about the data is wrong."""

    def __init__(self) -> None:
        self._calls = 0

    def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        last = messages[-1]
        if isinstance(last, str):
            return self._call("run_python", code=LOAD.format(column="amount"))
        assert isinstance(last, tuple)
        (result,) = last
        if "KeyError: 'amount'" in result.text:  # look at the data before the next guess
            return self._call("run_python", code="print(*orders[0])")
        if result.text == "month cents":
            return self._call("run_python", code=LOAD.format(column="cents"))
        if result.text == "value: 12":
            return self._call("try_ways", ways=WAYS)
        if result.call.name == "try_ways":
            return self._call("keep", name=self._best(json.loads(result.text)))
        if result.call.name == "keep":
            return self._call("run_python", code="print(round(forecast(series)))")
        if result.failed:
            return Reply(f"I cannot go on: {result.text}")
        return Reply(f"Next month's revenue in the south is likely to be {int(result.text) / 100:.2f}.")

    def _call(self, tool: str, **arguments: object) -> Reply:
        self._calls += 1
        return Reply(calls=(ToolCall(f"call_{self._calls}", tool, arguments),))

    def _best(self, outcomes: Mapping[str, str]) -> str:
        """The way that printed the smallest error. Those that printed a traceback are out."""
        errors = {name: float(text) for name, text in outcomes.items() if text.replace(".", "", 1).isdigit()}
        return min(errors, key=errors.__getitem__)


# --- put together ----------------------------------------------------------------------------------------------------


def show(messages: Sequence[Message]) -> None:
    for message in messages:
        if isinstance(message, str):
            print(f"user:   {message}")
        elif isinstance(message, Reply):
            for call in message.calls:
                print(f"model:  {call.name}({', '.join(call.arguments)})")
            if message.text:
                print(f"model:  {message.text}")
        else:
            for result in message:
                print(f"result: {'failed: ' if result.failed else ''}{result.text.splitlines()[-1][:100]}")


def main() -> None:
    conversation = Conversation("How much revenue will the south make next month?")
    with Sandbox(tools=[fetch_orders], memory_mib=512, pids=64, idle_timeout_seconds=600) as sandbox:
        conversation.run(ScriptedModel(), sandbox)
    show(conversation.messages)


if __name__ == "__main__":
    main()
