"""Names that people know from other libraries, and the names that Ramet has for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE; importing inspect takes long
Function = TypeVar("Function", bound=Callable[..., Any])

_MEMBERS = {
    "kill": "close()",
    "stop": "close()",
    "terminate": "close()",
    "delete": "close()",
    "shutdown": "close()",
    "run": "run_code(code)",
    "exec": "run_code(code)",
    "execute": "run_code(code)",
    "exec_cell": "run_code(code)",
    "run_cell": "run_code(code)",
    "notebook": "run_code(code)",
    "commands": 'run_code(command, language="bash")',
    "process": 'run_code(command, language="bash")',
    "run_command": 'run_code(command, language="bash")',
    "filesystem": "files",
    "read_file": "files.read(path)",
    "write_file": "files.write(path, data)",
    "list_files": "files.list(path)",
    "upload_file": "upload(path, remote_path)",
    "download_file": "download(remote_path, local_path)",
    "pty": "terminal()",
    "get_host": "expose(port)",
    "set_timeout": "extend(timeout_seconds)",
    "sandbox_id": "id",
    "get_info": "info()",
    "get_value": "get(name)",
    "set_value": "set(name, value)",
    "checkpoint": "snapshot()",
    "clone": "fork()[0]",
}
_ARGUMENTS = {
    "timeout": "timeout_seconds",
    "idle_timeout": "idle_timeout_seconds",
    "memory": "memory_mib",
    "memory_mb": "memory_mib",
    "ram": "memory_mib",
    "ram_mib": "memory_mib",
    "cpu": "cpus",
    "disk": "disk_mib",
    "envs": "env",
    "environment": "env",
    "workdir": "cwd",
    "working_dir": "cwd",
    "image": "template",
    "volumes": "mounts",
    "base_url": "url",
    "key": "api_key",
    "internet": "network",
    "allow_internet_access": "network",
    "functions": "tools",
}


def no_such_member(owner: object, name: str) -> AttributeError:
    """Return the error for ``__getattr__``: Python's usual words, and Ramet's name for the member if there is one."""
    kind = type(owner).__name__
    message = f"{kind!r} object has no attribute {name!r}"
    if name in _MEMBERS:
        message += (
            f": write {'await ' if kind.startswith('Async') and '(' in _MEMBERS[name] else ''}sandbox.{_MEMBERS[name]}"
        )
    return AttributeError(message, name=name, obj=owner)


def no_member_of_list(owner: object, name: str, of_one: bool, example: str) -> AttributeError:
    """Return the error for ``__getattr__`` of the list that fork() returns, which people mistake for a sandbox."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if of_one:
        message += f": fork() gives a list of sandboxes; write {example}.{name}"
    return AttributeError(message, name=name, obj=owner)


def knows_its_arguments(function: Function) -> Function:
    """Decorate a function with keyword arguments: TypeError for an unknown one names the one that was meant."""
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def check(named: dict[str, Any]) -> None:
        for name in named:
            if name not in known:
                _refuse(function.__qualname__, name, known)

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        check(named)
        return function(*arguments, **named)

    @functools.wraps(function)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        check(named)
        return await function(*arguments, **named)

    return cast(Function, awaited if code.co_flags & _CO_COROUTINE else checked)


def _refuse(function: str, name: str, known: tuple[str, ...]) -> NoReturn:
    meant = _ARGUMENTS.get(name)
    if meant is None:
        from difflib import get_close_matches

        meant = next(iter(get_close_matches(name, known[1:], 1)), None)
    message = f"{function}() got an unexpected keyword argument {name!r}"
    raise TypeError(message if meant is None else f"{message}; did you mean {meant!r}?")


def not_picklable(kind: str) -> TypeError:
    return TypeError(
        f"cannot pickle a {kind}: it is a handle of a running process\n\n"
        f"hint: pass its id, and use {kind}.connect(id); other processes find only sandboxes of a server (url=...)"
    )
