"""Runs a command under a filter that refuses one system call: python refusing.py NAME ERRNO COMMAND...

As a container engine does it to everything inside. `capabilities` instead of NAME takes those away, refusing nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

from ramet.isolation.kernel.syscall_numbers import X86_64
from ramet.isolation.own_processes import powers

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _RETURN, _ALLOW, _ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse(number: int, answer: int) -> None:
    """From now on, to this process and all that it starts."""
    steps = [
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ERRNO | answer),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def main() -> None:
    name, answer, *command = sys.argv[1:]
    if name == "capabilities":
        powers.drop_capabilities()
    else:
        if platform.machine() != "x86_64":
            raise SystemExit("only for x86-64")
        powers.no_new_privileges()
        refuse(X86_64[name], int(answer))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
