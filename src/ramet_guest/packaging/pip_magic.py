"""`%pip`: installs into the sandbox's private layer, and fails at once if there is no network to install from.

With a network it does what the command `pip` does (`pip_program.py`): plain installations come from the engine's store.
Without one, that command asks this module whether pip can do anything at all.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shlex
import site
import sys

from ramet_guest.packaging import distributions, pip_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ramet_guest.processes.commands import Processes
    from ramet_guest.processes.output import Output

_SETTINGS = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",  # The layer is private: nothing of the system can break.
}
_NEED_INDEX = frozenset(("install", "download", "wheel", "index", "search"))
_OPTIONS_WITH_VALUE = frozenset(
    ("-c", "--constraint", "-t", "--target", "-d", "--dest", "--prefix", "--root", "--log", "--proxy", "--progress-bar")
)
_LOCAL_HOST = re.compile(r"localhost|\b127\.\d+\.\d+\.\d+|\[::1\]")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[\w,.-]*\])?(?:==([\w.+!-]+))?\Z")
HINT = """\
ERROR: pip was not run: this sandbox has no network, so no package index can be reached

hint: make the sandbox with a network, as in Sandbox(network=["index.example"]) with the hosts of your index,
      or mount a folder of wheels and use `%pip install --no-index --find-links /wheels NAME`
"""
# Without environment and site a bare interpreter starts in half the time.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from ramet_guest.packaging.pip_program import main; main(sys.argv[1:])"
)
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run_pip(line: str, processes: Processes, output: Output) -> int:
    """Runs pip with the arguments of the line. Returns its exit code."""
    from ramet_guest.packaging import store  # not before it is needed: every template would have it in its memory

    arguments = shlex.split(line)
    command = [sys.executable, "-m", "pip", *arguments]
    has_store = store.is_there()
    if has_store:
        command = [sys.executable, "-ISXutf8", "-c", _PROGRAM, _PACKAGE_FOLDER, *arguments]
    elif is_out_of_reach(arguments):
        output.error_text(HINT)
        return 1
    code = processes.run(command, sys.executable, settings_without_network())
    importlib.invalidate_caches()
    show_user_packages()
    return code


def is_out_of_reach(arguments: list[str]) -> bool:
    """Whether pip could only retry in vain."""
    if has_network() or not needs_index(arguments):
        return False
    return not pip_arguments.wants_no_index(distributions.prefix(), os.environ)


def settings_without_network() -> dict[str, str]:
    """Returns the environment for a pip without an index. The user's own settings take precedence."""
    return {**_SETTINGS, **os.environ}


def show_user_packages() -> None:
    """Adds the user's packages to `sys.path`.

    pip may install there, and Python omits a folder that was missing when it started.
    """
    folder = site.getusersitepackages()
    if site.ENABLE_USER_SITE and folder not in sys.path and os.path.isdir(folder):
        site.addsitedir(folder)


def has_network(ipv4_routes: str = "/proc/net/route", ipv6_routes: str = "/proc/net/ipv6_route") -> bool:
    """Whether any route leaves this machine. True if the kernel does not show it; pip then finds out.

    A sandbox's network has no route: it is a proxy, which `needs_index` recognises by the variables.
    """
    try:
        with open(ipv4_routes) as lines:
            next(lines, None)
            if any(not line.startswith("lo\t") for line in lines if line.strip()):
                return True
    except OSError:
        return True
    try:
        with open(ipv6_routes) as lines:
            return any(line.split()[-1] != "lo" for line in lines if line.strip())
    except OSError:  # this kernel has no IPv6
        return False


def needs_index(arguments: list[str]) -> bool:
    """Whether pip would have to ask an index that it cannot reach."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    if not words or words[0] not in _NEED_INDEX:
        return False
    settings = [value for name, value in os.environ.items() if name.lower().startswith("pip_") or is_proxy(name)]
    if "--no-index" in arguments or os.environ.get("PIP_NO_INDEX", "0").lower() in ("1", "true", "yes", "on"):
        return False
    if any(_LOCAL_HOST.search(text) for text in (*arguments, *settings)):
        return False
    wanted = requirements(arguments)
    if "-r" in arguments or any(argument.startswith(("-r", "--requirement")) for argument in arguments):
        return not any(mentions_no_index(argument) for argument in arguments)
    upgrade = any(argument in ("-U", "--upgrade", "--force-reinstall") for argument in arguments)
    return not wanted or not all(is_local(name) or (not upgrade and is_installed(name)) for name in wanted)


def is_proxy(name: str) -> bool:
    return name.lower() in ("http_proxy", "https_proxy", "all_proxy")


def requirements(arguments: list[str]) -> list[str]:
    """Returns the packages to install, without subcommand, options and their values."""
    found = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in _OPTIONS_WITH_VALUE:
            skip = True
        elif not argument.startswith("-"):
            found.append(argument)
    return found[1:]


def mentions_no_index(path: str) -> bool:
    try:
        with open(path.removeprefix("--requirement=").removeprefix("-r"), encoding="utf-8", errors="replace") as lines:
            return any(line.strip().startswith("--no-index") for line in lines)
    except OSError:
        return False


def is_local(name: str) -> bool:
    path = name.partition("[")[0]
    looks_like_path = os.sep in path or path.endswith((".whl", ".gz", ".zip"))
    return name.startswith("file:") or (looks_like_path and os.path.exists(path))


def is_installed(name: str) -> bool:
    match = _REQUIREMENT.match(name)
    if match is None:
        return False
    version = installed_version(match[1])
    return version is not None and match[2] in (None, version)


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # A bare interpreter does not know its virtual environment.
        found = distributions.installed().get(distributions.normal(name))
        return None if found is None else found[0]
