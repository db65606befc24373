"""What a reader of a notebook sees below a cell, from a Jupyter kernel and from a sandbox, in one form."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet import ClearEvent, ExitEvent, OutputEvent, Result, ResultEvent, RichResult, Sandbox

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
# Names under which code is compiled: a file of the kernel's process, `<cell 3>` here.
_FILE = re.compile(r"(/\S*ipykernel_\d+/\d+\.py|<cell [\d.]+>|\b\d{6,}\.py)")
_BAR = re.compile(r"[^\r\n]*\r")
_SPEED = re.compile(r"\[\d\d:\d\d<[^\]]*\]|\d+(\.\d+)? ?(ns|µs|us|ms|s|it/s|s/it)\b|\?it/s")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass
class Seen:
    """Text and displays in their order, stderr apart: its order relative to stdout is promised by nobody."""

    flow: list[str] = field(default_factory=list)
    stderr: str = ""
    error: str | None = None

    def text(self, text: str) -> None:
        """Pieces of text that follow each other are one text."""
        if self.flow and self.flow[-1].startswith("text: "):
            self.flow[-1] += text
        elif text:
            self.flow.append("text: " + text)

    def finish(self) -> Seen:
        return Seen(
            [plain(part) for part in self.flow], plain(self.stderr), None if self.error is None else plain(self.error)
        )


def plain(text: str) -> str:
    """Without what differs between two runs anywhere: addresses, times, colours, states of a bar but the last.

    A kernel runs `!` commands at a pseudo-terminal, which ends lines in its own way.
    """
    text = text.replace("\r\n", "\n")
    for pattern, instead in ((_ESCAPE, ""), (_ADDRESS, "0x"), (_FILE, "FILE"), (_BAR, ""), (_SPEED, "SPEED")):
        text = pattern.sub(instead, text)
    return text


def shown(data: Mapping[str, Any]) -> str:
    """A display by its forms. Of pictures the size, which depends on everything that was drawn."""
    parts = []
    for mime in sorted(data):
        value = data[mime]
        if mime == "image/png":
            value = base64.b64decode(value) if isinstance(value, str) else value
            value = f"{int.from_bytes(value[16:20], 'big')} x {int.from_bytes(value[20:24], 'big')}"
        parts.append(f"{mime}: {value!s}".rstrip("\n"))
    return "shown: " + "; ".join(parts)


def of_kernel(outputs: list[Any]) -> Seen:
    seen = Seen()
    for output in outputs:
        if output["output_type"] == "stream":
            if output["name"] == "stdout":
                seen.text(output["text"])
            else:
                seen.stderr += output["text"]
        elif output["output_type"] == "error":
            seen.error = f"{output['ename']}: {output['evalue']}"
        else:
            seen.flow.append(shown(output["data"]))
    # Of exception groups a kernel prints the traceback as well.
    seen.stderr = without_traceback(seen.stderr, seen.error)
    return seen.finish()


def of_stream(sandbox: Sandbox, code: str) -> Seen:
    """As somebody who watches sees it."""
    seen, clears_next = Seen(), False
    for event in sandbox.run_code_stream(code):
        if isinstance(event, ClearEvent) and event.wait:
            clears_next = True
            continue
        if isinstance(event, ClearEvent) or (clears_next and not isinstance(event, ExitEvent)):
            seen, clears_next = Seen(), False
        if isinstance(event, OutputEvent):
            if event.type == "stdout":
                seen.text(event.data)
            else:
                seen.stderr += event.data
        elif isinstance(event, ResultEvent):
            seen.flow.append(shown(event.result.data))
        elif isinstance(event, ExitEvent):
            seen.error = error_of(event.result)
    seen.stderr = without_traceback(seen.stderr, seen.error)
    return seen.finish()


def of_result(result: Result) -> Seen:
    """As somebody who asks for the result sees it: all text, then all displays."""
    seen = Seen([], without_traceback(result.stderr, error_of(result)), error_of(result))
    seen.text(result.stdout)
    seen.flow += [shown(rich.data) for rich in result.results if isinstance(rich, RichResult)]
    return seen.finish()


def error_of(result: Result) -> str | None:
    return None if result.error is None else f"{result.error.name}: {result.error.message}"


def without_traceback(stderr: str, error: str | None) -> str:
    """A kernel sends it apart."""
    if error is None:
        return stderr
    cut = re.search(
        r"^(Traceback \(most recent|  \+ Exception Group|  File \"<cell|UsageError|\w+Error: )", stderr, re.M
    )
    return stderr if cut is None else stderr[: cut.start()]


def texts_first(seen: Seen) -> Seen:
    """In the order of a result."""
    ordered = Seen([], seen.stderr, seen.error)
    ordered.text("".join(part.removeprefix("text: ") for part in seen.flow if part.startswith("text: ")))
    ordered.flow += [part for part in seen.flow if not part.startswith("text: ")]
    return ordered
