"""Completes names as they are in a sandbox, by a cell that leaves no name, value or output behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import RametError

_SECONDS = 2.0
_WORD = re.compile(r"%{0,2}[^\W\d]\w*(?:\.\w*)*$|%{1,2}$")

# Runs in the sandbox, in a namespace of its own. It does not read computed attributes, because a question must change
# nothing. It publishes the names as a displayed object: `_` and the output stay as they are.
_QUESTION = r"""
import builtins, inspect, json, keyword

shell = get_ipython()
names = shell.user_ns

def attributes(value):
    return [name for name in dir(value) if isinstance(name, str)]

def step(value, name):
    found = inspect.getattr_static(value, name)
    if isinstance(found, property) or type(found).__name__ == "cached_property":
        raise LookupError(name)
    return getattr(value, name)

def candidates():
    if text.startswith("%"):
        known = shell.magics_manager.lsmagic()
        return ["%" * (2 if kind == "cell" else 1) + name for kind, found in known.items() for name in found]
    first, *rest = text.split(".")
    if not rest:
        return [*names, *attributes(builtins), *keyword.kwlist]
    value = names[first] if first in names else getattr(builtins, first)
    for name in rest[:-1]:
        value = step(value, name)
    before = text[: len(text) - len(rest[-1])]
    return [before + name for name in attributes(value)]

try:
    found = sorted({one for one in candidates() if one.startswith(text)})
except Exception:
    found = []
last = text.rpartition(".")[2]
if not last.startswith("_"):
    found = [one for one in found if not one.rpartition(".")[2].startswith("_")]
shell.display_pub.publish({"text/plain": json.dumps(found[:1000])})
shell.history.withdraw()
"""


def complete(sandbox: Sandbox, text: str) -> list[str]:
    """Return the completions of `text`, a name or a dotted path, in this sandbox.

    Empty if they cannot be found in time.
    """
    code = f"exec({_QUESTION!a}, {{'text': {text!a}, 'get_ipython': get_ipython}})"
    try:
        result = sandbox.run_code(code, timeout=_SECONDS)
        found = json.loads(result.results[-1].text or "[]") if result.results else []
    except (RametError, ValueError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


class SandboxCompleter(Completer):
    """Asks the sandbox for completions at the cursor."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        word = _WORD.search(document.text_before_cursor)
        if word is None:
            return
        text = word.group()
        after = text.rpartition(".")[2] if "." in text else text
        for name in complete(self._sandbox, text):
            shown = name.rpartition(".")[2] if "." in text else name
            yield Completion(shown, start_position=-len(after))
