"""What the end of an engine that never stood is told as."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from ramet.errors import EngineLost, HostNotCapable
from ramet.isolation.launch import EngineProcess
from ramet.transport.embedded import EmbeddedEngine


class _Ended:
    """A process that has ended so, and has said this."""

    pid = 4321

    def __init__(self, code: int, said: str) -> None:
        self._code = code
        self._said = said

    def wait(self, _timeout: float | None = None) -> int:
        return self._code

    def stderr_tail(self) -> str:
        return self._said

    def kill(self) -> None:
        pass


def _engine(code: int, said: str) -> EmbeddedEngine:
    def start(theirs: socket.socket, listening: socket.socket | None) -> EngineProcess:
        return cast(EngineProcess, _Ended(code, said))

    return EmbeddedEngine(start)


def test_an_interpreter_whose_library_is_not_found_is_the_hosts_fault_and_the_library_is_named() -> None:
    said = "python3: error while loading shared libraries: libpython3.13.so.1.0: cannot open shared object file"
    error = _engine(127, said).lost()
    assert isinstance(error, HostNotCapable)
    assert "libpython3.13.so.1.0" in error.message
    assert error.hint is not None
    assert "in its own prefix" in error.hint


@pytest.mark.parametrize(("code", "said"), [(127, "not found"), (1, "error while loading shared libraries: x")])
def test_another_end_is_a_lost_engine(code: int, said: str) -> None:
    assert isinstance(_engine(code, said).lost(), EngineLost)
