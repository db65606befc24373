"""`In`, `Out`, `_1`, `_i` and their like, stored in the lists of IPython's history manager, which `%history` reads.

Inputs stay as long as `Sources` keeps them for tracebacks. Only the latest values stay, limited in number and in the
size that they report: otherwise everything that was ever shown would remain in memory.
"""

from __future__ import annotations

from collections import deque
from fnmatch import fnmatchcase
from typing import Any

from ramet_guest.cells.sources import Sources
from ramet_guest.comparing.descriptions import size_of

# IPython keeps as many.
MAXIMUM_VALUES = 1000
MAXIMUM_VALUE_BYTES = 64 << 20
# Limit for the text that `%history -o` shows.
MAXIMUM_TEXT_CHARACTERS = 1000
# Types whose size is too small to ask for.
_SMALL = frozenset((bool, float, complex))
_SMALL_BITS = 1000


class InputHistory:
    """Owns the names of earlier inputs and values in the namespace. `shell` is IPython's and has a history manager."""

    def __init__(self, shell: Any, namespace: dict[str, Any], sources: Sources) -> None:
        self._manager = manager = shell.history_manager
        # For `%history -l` and `-g`, which would ask a database that is not there.
        manager.get_tail, manager.search = self.tail, self.search
        self._sources = sources
        self._traits: dict[str, Any] = shell._trait_values
        self._namespace = namespace
        self._parsed: list[str] = manager.input_hist_parsed
        self._raw: list[str] = manager.input_hist_raw
        self._values: dict[int, Any] = manager.output_hist
        self._texts: dict[int, str] = manager.output_hist_reprs
        self._kept: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self.forget()

    def __repr__(self) -> str:
        return f"<InputHistory of {len(self._parsed) - 1} inputs, {len(self._values)} values>"

    def forget(self) -> None:
        """Starts over with an empty history."""
        self._parsed[:] = self._raw[:] = [""]
        self._values.clear()
        self._texts.clear()
        self._kept.clear()
        self._bytes = 0
        self._last = ""
        self._before = ("", "", "", "")
        self._traits["execution_count"] = 0
        self._namespace.update(_i="", _ii="", _iii="")

    def store(self, number: int, raw: str, parsed: str) -> None:
        """Records the input of a cell that begins.

        Writes to the dict behind IPython's traits, whose checks and notifications would cost time in every cell.
        """
        same = raw is parsed
        raw = raw.rstrip("\n")
        self._raw.append(raw)
        self._parsed.append(raw if same else parsed.rstrip("\n"))
        self._traits["execution_count"] = number
        names = self._namespace
        self._before = before = (self._last, names.get("_i", ""), names.get("_ii", ""), names.get("_iii", ""))
        names["_i"], names["_ii"], names["_iii"], _ = before
        names[f"_i{number}"] = self._last = raw

    def withdraw(self) -> None:
        """Removes the running cell from the history.

        A program sent it to look at something, so it must leave no number and no name behind.
        """
        number = self._sources.count
        if len(self._parsed) != number + 1:
            return  # the user ran `%reset in`
        self._sources.count = self._traits["execution_count"] = number - 1
        del self._parsed[number], self._raw[number]
        names = self._namespace
        names.pop(f"_i{number}", None)
        self._last, names["_i"], names["_ii"], names["_iii"] = self._before

    def tail(
        self, n: int | None = 10, raw: bool = True, output: bool = False, include_latest: bool = False
    ) -> list[tuple[int, int, Any]]:
        """Returns the last `n` inputs, as IPython's `get_tail` does; without the running cell unless asked for."""
        inputs = list(self._manager.get_range(0, 1, None, raw, output))
        end = len(inputs) if include_latest else max(len(inputs) - 1, 0)
        return inputs[max(end - (10 if n is None else n), 0) : end]

    def search(
        self,
        pattern: str = "*",
        raw: bool = True,
        search_raw: bool = True,
        output: bool = False,
        n: int | None = None,
        unique: bool = False,
    ) -> list[tuple[int, int, Any]]:
        """Returns the inputs that match a pattern with wildcards, as IPython's method of this name does."""
        searched = self._raw if search_raw else self._parsed
        found = {
            searched[number] if unique else number: (session, number, text)
            for session, number, text in self._manager.get_range(0, 1, None, raw, output)
            if fnmatchcase(searched[number], pattern)
        }
        inputs = sorted(found.values(), key=lambda one: one[1])
        return inputs if n is None else inputs[max(len(inputs) - n, 0) :]

    def drop_input(self, name: str) -> None:
        """Drops the source called `<cell 12>`, which `Sources` no longer keeps. Its place in `In` stays, empty."""
        digits = name[6:-1]
        if not digits.isdecimal():
            return  # code that a magic ran has no number
        number = int(digits)
        for inputs in (self._parsed, self._raw):
            if number < len(inputs):
                inputs[number] = ""
        self._namespace.pop(f"_i{number}", None)

    def keep_value(self, value: Any, text: object) -> None:
        """Stores the running cell's value. Asks the value for its size, which may run user code."""
        values, kept, names = self._values, self._kept, self._namespace
        if value is values:
            return
        if not values:
            # The history is new, or the user ran `%reset`.
            kept.clear()
            self._bytes = 0
        number: int = self._traits["execution_count"]
        if kept and kept[-1][0] == number:
            self._bytes -= kept.pop()[1]
        kind = type(value)
        if kind in _SMALL or (kind is int and value.bit_length() < _SMALL_BITS):
            size = 0
        else:
            try:
                size = max(size_of(value), 0)
            except Exception:
                size = 0
        kept.append((number, size))
        self._bytes += size
        values[number] = names[f"_{number}"] = value
        if isinstance(text, str) and len(text) <= MAXIMUM_TEXT_CHARACTERS:
            self._texts[number] = text
        while len(kept) > 1 and (len(kept) > MAXIMUM_VALUES or self._bytes > MAXIMUM_VALUE_BYTES):
            self._drop_value(*kept.popleft())

    def _drop_value(self, number: int, size: int) -> None:
        self._bytes -= size
        missing = object()
        value = self._values.pop(number, missing)
        self._texts.pop(number, None)
        if self._namespace.get(f"_{number}", missing) is value:
            del self._namespace[f"_{number}"]
