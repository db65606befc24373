"""Attempts made inside a sandbox, and how each was refused."""

from __future__ import annotations

import ast
from typing import Any

from ramet import Result, Sandbox
from ramet.isolation.kernel.syscall_numbers import X86_64

_BOUND_SECONDS = 30

# In the sandbox: the name of the error a call was refused with, or what it gave.
_TOOLS = """
import ctypes, errno, fcntl, mmap, os, resource, signal, socket, struct, subprocess, sys, threading, time
_c = ctypes.CDLL(None, use_errno=True)
_c.syscall.restype = ctypes.c_long

def call(number, *arguments):
    ctypes.set_errno(0)
    result = _c.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result

def refusal(action, *arguments, **options):
    try:
        return action(*arguments, **options)
    except OSError as error:
        return errno.errorcode[error.errno]

def reading(path):
    with open(path, 'rb') as file:
        return file.read()

def writing(path, data=b'x', flags=os.O_WRONLY):
    descriptor = os.open(path, flags)
    try:
        return os.write(descriptor, data)
    finally:
        os.close(descriptor)
"""


def armed(sandbox: Sandbox) -> Sandbox:
    """The sandbox, with the tools for attempts in its namespace."""
    assert sandbox.run_code(_TOOLS, timeout=_BOUND_SECONDS).ok
    return sandbox


def value(sandbox: Sandbox, code: str, timeout: float = _BOUND_SECONDS) -> Any:
    """The value of the last expression of a cell, which must be a literal."""
    result = sandbox.run_code(code, timeout=timeout)
    assert result.ok, result
    return None if result.value is None else ast.literal_eval(result.value)


def attempt(sandbox: Sandbox, name: str, arguments: str = "") -> Any:
    """How the kernel answers a system call of the sandbox: the name of the error, or the result."""
    return value(sandbox, f"call({X86_64[name]}, {arguments})")


def ending(result: Result) -> tuple[str, str | None, int]:
    return result.state, result.cause, result.exit_code
