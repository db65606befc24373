"""Tool calls that are made when they are awaited, and a record of those that never are.

Where an event loop runs, a tool call has to be awaited. Without `await` it would never be made, and the cell would seem
to have succeeded. So each call is an object that says what is missing, and a cell that forgets one fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any, NoReturn

from ramet_guest.tools.errors import ToolError

MAXIMUM_RECORDED = 100
MAXIMUM_NAMED = 3


class Unmade:
    """Calls of the running cell's thread that were not awaited so far: function, file and line by number."""

    def __init__(self) -> None:
        self.calls: dict[int, tuple[str, str, int]] = {}
        self._count = 0

    def record(self, function: str, frame: FrameType) -> int:
        """Records a call. Returns the number that removes it, or 0 if it is not recorded."""
        if threading.current_thread() is not threading.main_thread() or len(self.calls) >= MAXIMUM_RECORDED:
            return 0
        self._count += 1
        self.calls[self._count] = (function, frame.f_code.co_filename, frame.f_lineno)
        return self._count

    def strike_out(self, number: int) -> None:
        self.calls.pop(number, None)

    def take_error(self) -> ToolError:
        """Returns an error that names the recorded calls, and forgets them."""
        calls, self.calls = list(dict.fromkeys(self.calls.values())), {}
        places = [f"{function}() in {file}, line {line}" for function, file, line in calls[:MAXIMUM_NAMED]]
        if len(calls) > MAXIMUM_NAMED:
            places.append(f"and {len(calls) - MAXIMUM_NAMED} more")
        message = f"called without await, so the call was not made: {'; '.join(places)}"
        return ToolError(f"{message}\n\nhint: write await {calls[0][0]}(...)", calls[0][0], "unawaited")


unmade = Unmade()


class PendingCall(Coroutine[Any, Any, Any]):
    """Returned by a tool's function where a loop runs. Await it, alone or in `gather` and tasks."""

    __slots__ = ("_begin", "_function", "_number", "_running")

    def __init__(self, function: str, begin: Callable[[], Coroutine[Any, Any, Any]], frame: FrameType) -> None:
        self._function = function
        self._begin = begin
        self._running: Coroutine[Any, Any, Any] | None = None
        self._number = unmade.record(function, frame)

    def __repr__(self) -> str:
        if self._running is None:
            return f"<call of {self._function} that was not made yet: write await {self._function}(...)>"
        return f"<call of {self._function}>"

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine().__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine().throw(*error)

    def close(self) -> None:
        unmade.strike_out(self._number)
        if self._running is not None:
            self._running.close()

    def _coroutine(self) -> Coroutine[Any, Any, Any]:
        running = self._running
        if running is None:
            unmade.strike_out(self._number)
            running = self._running = self._begin()
        return running

    # Operations of code that takes the call for its value.

    def _refuse(self, *arguments: object) -> NoReturn:
        raise TypeError(self._what_is_missing())

    def _what_is_missing(self) -> str:
        function = self._function
        return f"{function} was called without await where a loop runs\n\nhint: write await {function}(...)"

    __getitem__ = __iter__ = __len__ = __contains__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._what_is_missing())
