"""Plays the engine: starts a real guest with its descriptors in place and talks frames to it."""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ramet_guest
from tests import nursery

ENTRY = Path(ramet_guest.__file__).with_name("__main__.py")  # the installed one, as a sandbox would have it
PREFIX = struct.Struct("<IBBI")
CONFIGURE, RUN, INTERRUPT, TAKEN = 1, 2, 8, 13
READY, CONFIGURED, RESULT, DONE = 1, 2, 3, 4
HARD_SIGNAL = 62
PATIENCE_SECONDS = 20.0


@dataclass
class Shown:
    """One RESULT frame."""

    what: str
    data: dict[str, Any]
    names: list[str]
    display_id: str | None

    @property
    def text(self) -> str:
        return str(self.data["text/plain"])


@dataclass
class Outcome:
    """A cell that ended."""

    stdout: str
    stderr: str
    exit_code: int | None
    error: dict[str, str] | None
    interrupted: bool
    results: list[Shown] = field(default_factory=list)
    # How the process ended, if it did.
    death: int | None = None

    @property
    def value(self) -> str | None:
        return next((shown.text for shown in self.results if shown.what == "value"), None)


class TookTooLong(Exception):
    pass


class Guest:
    def __init__(
        self,
        python: str = sys.executable,
        preload: tuple[str, ...] = (),
        warm_up: bool = False,
        builtin: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        commands: str | None = None,
    ) -> None:
        self.control, theirs = socket.socketpair()
        self.out, out_end = os.pipe()
        self.err, err_end = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": cwd or "/tmp",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "MPLCONFIGDIR": "/tmp/ramet-test-matplotlib",
            "OPENBLAS_NUM_THREADS": "1",
            **(env or {}),
        }
        options = json.dumps({"preload": preload, "warm_up": warm_up, "builtin": builtin, "commands": commands})
        targets = ((null, 0), (out_end, 1), (err_end, 2), (theirs.fileno(), 1000), (out_end, 1001), (err_end, 1002))
        # Only what differs from others in its interpreter or in what it loads has to start an interpreter.
        alike = python == sys.executable and not (preload or warm_up or env)
        self._nursery = nursery.guests(str(ENTRY)) if alike else None
        if self._nursery is not None:
            self.pid = self._nursery.start([options], environment, targets)
        else:
            self.pid = os.posix_spawn(
                python,
                [python, "-P", "-X", "utf8", str(ENTRY), options],
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in targets],
                setpgroup=0,
            )
        theirs.close()
        for descriptor in (null, out_end, err_end):
            os.close(descriptor)
        for descriptor in (self.out, self.err):
            os.set_blocking(descriptor, False)
        self._buffer = b""
        self._id = 0
        self._status: int | None = None
        self._reset()
        kind, self.ready, _ = self._frame(time.monotonic() + PATIENCE_SECONDS)
        assert kind == READY, f"no READY but {kind}: {self._err.decode()}"
        assert not self._out + self._err, (self._out, self._err)
        if cwd is not None:
            assert self.configure(cwd=cwd) is None

    # Cells

    def run(self, code: str, language: str = "python") -> Outcome:
        self.start(code, language)
        return self.finish()

    def start(self, code: str, language: str = "python") -> None:
        self._reset()
        self._id += 1
        self.send(RUN, {"id": self._id, "language": language}, code.encode("utf-8", "surrogatepass"))

    def finish(self, patience_seconds: float = PATIENCE_SECONDS) -> Outcome:
        """Waits for the answer, then takes exactly what is in the pipes at that moment."""
        deadline = time.monotonic() + patience_seconds
        results: list[Shown] = []
        while True:
            kind, header, blob = self._frame(deadline)
            if kind == RESULT:
                assert header["id"] == self._id
                results.append(decode_result(header, blob))
                if "number" in header:
                    self._drain()  # what was printed before it, as the engine does
                    self.send(TAKEN, {"number": header["number"]})
            elif kind == DONE:
                assert header["id"] == self._id
                self._drain()
                return self._outcome(header["exit_code"], header["error"], header["interrupted"], results)
            else:
                assert kind == 0, f"unexpected frame {kind}"
                self._drain()
                outcome = self._outcome(None, None, False, results)
                outcome.death = self.wait()
                return outcome

    def wait_for_stdout(self, text: str) -> None:
        """Reads until the running cell has printed this."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text.encode() not in self._out:
            self._pump(deadline, frames=False)

    def wait_until_asleep(self) -> None:
        """Waits until the guest's main thread waits in the kernel."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            if time.monotonic() > deadline:
                raise TookTooLong("the guest does not sleep")
            time.sleep(0.001)

    def read_stdout(self, minimum_bytes: int) -> bytes:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self._out) < minimum_bytes:
            self._pump(deadline, frames=False)
        return bytes(self._out)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def interrupt(self) -> None:
        self.signal(signal.SIGINT)

    def send_interrupt(self) -> None:
        """The frame that the engine sends before the signal."""
        self.send(INTERRUPT, {"id": self._id})

    def finish_by_signal(self, number: int) -> Outcome:
        """Interrupts until the cell ends, as the engine does: one that arrives in the instant before a system call
        begins to wait is seen only when the call returns."""
        for _ in range(20):
            self.signal(number)
            try:
                return self.finish(patience_seconds=1)
            except TookTooLong:
                continue
        raise TookTooLong(f"not ended by signal {number}: {self._out[-500:]!r} {self._err[-500:]!r}")

    def configure(self, env: Mapping[str, str] | None = None, cwd: str | None = None) -> str | None:
        self.send(CONFIGURE, {"env": env, "cwd": cwd})
        kind, header, _ = self._frame(time.monotonic() + PATIENCE_SECONDS)
        assert kind == CONFIGURED
        problem: str | None = header["error"]
        return problem

    def send(self, kind: int, header: Mapping[str, Any], blob: bytes = b"") -> None:
        encoded = json.dumps(header).encode("ascii")
        self.control.sendall(PREFIX.pack(6 + len(encoded) + len(blob), 1, kind, len(encoded)) + encoded + blob)

    # The process

    def wait(self) -> int:
        """How it ended: an exit code, or -n for signal n."""
        if self._status is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                if not select.select([descriptor], [], [], PATIENCE_SECONDS)[0]:
                    raise TookTooLong("the guest did not end")
            finally:
                os.close(descriptor)
            self._status = os.waitpid(self.pid, 0)[1] if self._nursery is None else self._nursery.status(self.pid)
        return os.waitstatus_to_exitcode(self._status)

    def close(self) -> None:
        self.control.close()
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        for descriptor in (self.out, self.err):
            os.close(descriptor)

    # Reading

    def _reset(self) -> None:
        self._out = bytearray()
        self._err = bytearray()

    def _outcome(
        self, code: int | None, error: dict[str, str] | None, interrupted: bool, results: list[Shown]
    ) -> Outcome:
        return Outcome(
            self._out.decode("utf-8", "replace"),
            self._err.decode("utf-8", "replace"),
            code,
            error,
            interrupted,
            results,
        )

    def _frame(self, deadline: float) -> tuple[int, dict[str, Any], bytes]:
        while True:
            if len(self._buffer) >= 4:
                length = int.from_bytes(self._buffer[:4], "little")
                if len(self._buffer) >= 4 + length:
                    frame, self._buffer = self._buffer[: 4 + length], self._buffer[4 + length :]
                    _, version, kind, header_length = PREFIX.unpack_from(frame)
                    assert version == 1
                    header = json.loads(frame[10 : 10 + header_length].decode("ascii"))
                    return kind, header, frame[10 + header_length :]
            if not self._pump(deadline):
                return 0, {}, b""

    def _pump(self, deadline: float, frames: bool = True) -> bool:
        """Reads what is there, waiting for it; False at the end of the control socket."""
        sources: list[Any] = [self.out, self.err]
        if frames:
            sources.append(self.control)
        readable = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))[0]
        if not readable:
            raise TookTooLong(f"stdout {self._out[-500:]!r} stderr {self._err[-500:]!r}")
        for source in readable:
            if source is self.control:
                chunk = self.control.recv(1 << 20)
                if not chunk:
                    return False
                self._buffer += chunk
            else:
                (self._out if source == self.out else self._err).extend(os.read(source, 1 << 18))
        return True

    def _drain(self) -> None:
        for descriptor, text in ((self.out, self._out), (self.err, self._err)):
            waiting = array.array("i", [0])
            fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
            missing = waiting[0]
            while missing > 0:
                chunk = os.read(descriptor, missing)
                text.extend(chunk)
                missing -= len(chunk)


def decode_result(header: dict[str, Any], blob: bytes) -> Shown:
    data: dict[str, Any] = {}
    position = 0
    for name, kind, length in header["mimes"]:
        piece = blob[position : position + length]
        position += length
        data[name] = piece if kind == "b" else json.loads(piece) if kind == "j" else piece.decode()
    assert position == len(blob)
    return Shown(header["what"], data, [name for name, _, _ in header["mimes"]], header["display_id"])
