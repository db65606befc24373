# mypy: disable-error-code="no-untyped-call"
"""IPython, reduced to the parts that cells use: input transformer, magics, formatters, `display`.

Everything that would write to HOME, start a thread or open a database is off. IPython's classes are loosely typed; only
this file subclasses them.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from IPython.core import interactiveshell
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from traitlets import Type
from traitlets.config import Config

from ramet_guest.cells.history import MAXIMUM_VALUES, InputHistory
from ramet_guest.cells.rich import Publisher, simple_form

_builtin_names: dict[str, Any] = vars(builtins)
_UNUSED_NAMES = ("exit", "quit", "open", "get_ipython")


class CellDisplayHook(DisplayHook):
    """`sys.displayhook`: publishes a value and stores it in `Out`, and the last three as `_`, `__`, `___`."""

    def quiet(self) -> bool:
        return False

    def __call__(self, result: Any = None) -> None:
        if result is None:
            return
        shell: Any = self.shell
        data = simple_form(result, shell.display_formatter) or shell.display_formatter.format(result)[0]
        self.remember(result)
        shell.history.keep_value(result, data.get("text/plain"))
        if self.exec_result is not None:
            self.exec_result.result = result
        if data:
            # Find out whether the code that ends a cell called us, or user code in the middle of one.
            caller = sys._getframe(1).f_code
            last = any(caller is code for code in shell.ending_code)
            shell.publisher.publish_value(data, last)

    def remember(self, result: Any) -> None:
        shell: Any = self.shell
        namespace = shell.user_ns
        # Leave the user's own `_` alone (gettext sets one); set it again if it was deleted.
        if "_" not in _builtin_names and namespace.get("_", self._) is self._:
            self.___, self.__, self._ = self.__, self._, result
            namespace["_"] = result
            namespace["__"] = self.__
            namespace["___"] = self.___

    def forget(self) -> None:
        self._ = self.__ = self.___ = ""


class CellDisplayPublisher(DisplayPublisher):
    """Publishes what `display(...)` and figures show."""

    def _setup_execution_tracking(self) -> None:
        pass

    def publish(self, data: Any, metadata: Any = None, source: Any = None, **options: Any) -> None:
        transient = options.get("transient") or {}
        what = "update" if options.get("update") else "display"
        self.shell.publisher.publish(what, data, transient.get("display_id"))

    def clear_output(self, wait: bool = False) -> None:
        self.shell.publisher.publish("clear", {}, wait=bool(wait), exact=True)


class Exiter:
    """`exit` and `quit`: end the cell. Python's own would also close stdin."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)

    def __repr__(self) -> str:
        return f"Use {self._name}() to end the cell"


class CellShell(InteractiveShell):
    """The shell behind `get_ipython()`. Cells do not run through it; `run_cell` serves magics that run code."""

    displayhook_class = Type(CellDisplayHook)
    display_pub_class = Type(CellDisplayPublisher)

    # The REPL sets these before the first cell.
    publisher: Publisher
    history: InputHistory
    # Code objects whose call of the displayhook is the last thing that a cell does.
    ending_code: list[CodeType | None]
    show_error: Callable[[BaseException], None]
    run_nested: Callable[[str], BaseException | None]
    run_command: Callable[[str], int]
    command_failed: Callable[[str, int], None]

    def init_ipython_dir(self, ipython_dir: Any) -> None:
        # Bypasses the trait's observer, which would make the folder.
        self._trait_values["ipython_dir"] = "/nonexistent"

    def init_profile_dir(self, profile_dir: Any) -> None:
        self.profile_dir = None
        self._db = {}  # type: ignore[assignment]
        if hasattr(interactiveshell, "PickleShareDB"):
            # IPython 8 makes a database in this folder, whatever the configuration says.
            self._trait_values["profile_dir"] = SimpleNamespace(location="/nonexistent")
            interactiveshell.PickleShareDB = lambda folder: {}

    def init_virtualenv(self) -> None:
        pass

    def init_completer(self) -> None:
        self.Completer = None  # type: ignore[assignment]

    def init_logstart(self) -> None:
        pass

    def init_pdb(self) -> None:
        self.call_pdb = False

    def init_user_ns(self) -> None:
        super().init_user_ns()
        for name in _UNUSED_NAMES:
            self.user_ns.pop(name, None)

    def atexit_operations(self) -> None:
        pass

    def enable_gui(self, gui: Any = None) -> None:
        pass

    def set_next_input(self, s: str, replace: bool = False) -> None:
        """Prints what `%load` and `%recall` would put into the next cell for the user to edit and run."""
        print(s)

    def showtraceback(self, exc_tuple: Any = None, *arguments: Any, **options: Any) -> None:
        error = exc_tuple[1] if isinstance(exc_tuple, tuple) else sys.exc_info()[1]
        if error is not None:
            self.show_error(error)

    def showsyntaxerror(self, *arguments: Any, **options: Any) -> None:
        self.showtraceback()

    def showindentationerror(self) -> None:
        self.showtraceback()

    def run_cell(self, raw_cell: str, *arguments: Any, **options: Any) -> Any:
        """Runs code for a magic (`%%capture`, `%rerun`) the way cells run."""
        result = self.execution_result()
        hook = self.displayhook
        outer, hook.exec_result = hook.exec_result, result
        try:
            result.error_in_exec = self.run_nested(raw_cell)
        finally:
            hook.exec_result = outer
        return result

    @staticmethod
    def execution_result() -> Any:
        return ExecutionResult(None)

    @staticmethod
    def execution_info(source: str) -> Any:
        return ExecutionInfo(source, False, True, False, None)

    def system_raw(self, cmd: str) -> None:
        """Runs `!command`."""
        command = self.var_expand(cmd, depth=1)
        self.user_ns["_exit_code"] = code = self.run_command(command)
        if code != 0:
            self.command_failed(command, code)

    system = system_raw


def configuration() -> Config:
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    shell = config.InteractiveShell
    shell.colors = "nocolor"
    shell.xmode = "Plain"
    shell.banner1 = ""
    shell.autoindent = False
    shell.history_length = 0
    shell.history_load_length = 0
    # `InputHistory` stores the values, and fewer of them if they are large.
    shell.cache_size = MAXIMUM_VALUES
    shell.automagic = True
    shell.show_rewritten_input = False
    if hasattr(InteractiveShell, "enable_tip"):  # IPython 8 has no tips and warns about the option
        shell.enable_tip = False
    return config


def print_page(shell: Any, data: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:
    """Prints help (`print?`) at once: there is no terminal to page through it."""
    text = data.get("text/plain", "") if isinstance(data, dict) else data
    sys.stdout.write(str(text).rstrip("\n") + "\n")


def make_shell() -> Any:
    """Makes the shell and the `__main__` module that cells run in."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    shell = CellShell.instance(config=configuration(), user_module=main)
    main.__dict__.pop("__builtin__", None)
    # Set once instead of around each cell.
    shell.builtin_trap.auto_builtins = {}
    _builtin_names["get_ipython"] = shell.get_ipython
    _builtin_names["exit"] = Exiter("exit")
    _builtin_names["quit"] = Exiter("quit")
    sys.displayhook = shell.displayhook
    shell.set_hook("show_in_pager", print_page, 0)
    # The REPL clears the registry itself. IPython runs callbacks through a function that swallows interrupts.
    with suppress(AttributeError, ValueError):  # other versions of IPython do not have it
        shell.events.unregister("pre_execute", shell._clear_warning_registry)
    return shell
