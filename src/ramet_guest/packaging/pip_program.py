"""The sandbox's command `pip`: plain installations come from the engine's store; everything else goes to pip itself.

Without a network there is no store, and no index that pip could ask: a command that needs one fails at once, with a
hint. The program runs in a bare interpreter and imports next to nothing, because pip takes half a second to start.
"""

from __future__ import annotations

import os
import sys

from ramet_guest import wire
from ramet_guest.packaging import distributions, pip_arguments, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_INTERRUPTED = 130
# The user has already seen the refusal. pip runs nevertheless, since the installed packages may be enough.
_WHERE_ALL_IS_REFUSED = {"PIP_RETRIES": "0", "PIP_TIMEOUT": "2"}


def main(words: list[str]) -> NoReturn:
    from _signal import SIG_DFL, SIGPIPE, signal  # type: ignore[import-not-found]

    signal(SIGPIPE, SIG_DFL)
    try:
        if not store.is_there():
            run_without_network(words)
        if not install(words):
            run_pip(words)
    except KeyboardInterrupt:
        say("ERROR: Operation cancelled by user")
        sys.exit(_INTERRUPTED)
    sys.exit(0)


def run_without_network(words: list[str]) -> NoReturn:
    from ramet_guest.packaging import pip_magic  # it takes longer to import than this program takes to start

    if pip_magic.is_out_of_reach(words):
        sys.stderr.write(pip_magic.HINT)
        sys.exit(1)
    become_pip(words, pip_magic.settings_without_network())


def run_pip(words: list[str]) -> NoReturn:
    become_pip(words, dict(os.environ))


def become_pip(words: list[str], environment: dict[str, str]) -> NoReturn:
    """Replaces this program by pip itself."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "pip", *words], environment)


def install(words: list[str]) -> bool:
    """Installs from the store. Returns False if pip has to do it; nothing has then changed that would disturb pip."""
    wanted = pip_arguments.plain(words)
    if wanted is None or pip_arguments.has_configuration(distributions.prefix(), os.environ):
        return False
    before = distributions.installed()
    if not wanted.upgrade and all(is_satisfied(one, before) for one in wanted.requirements):
        tell_satisfied(wanted, before)
        return True
    request = {
        "requirements": wanted.requirements,
        "upgrade": wanted.upgrade,
        "pre": wanted.pre,
        "no_deps": wanted.no_deps,
        "settings": pip_arguments.settings(os.environ),
    }
    try:
        given = store.ask(request, (lambda line: None) if wanted.quiet else tell)
    except store.IndexRefused as refused:
        say(str(refused))
        if os.environ.get("PIP_RETRIES") == wire.PIP_RETRIES:  # ours, not the user's
            del os.environ["PIP_RETRIES"]
        for name, value in _WHERE_ALL_IS_REFUSED.items():
            if name != "PIP_TIMEOUT" or "PIP_DEFAULT_TIMEOUT" not in os.environ:  # both names are the same setting
                os.environ.setdefault(name, value)
        return False
    except store.Unavailable:
        return False
    try:
        return take(given, wanted, before)
    except OSError as error:
        if error.errno in (28, 122):  # ENOSPC, EDQUOT: pip would fail too
            say(f"ERROR: Could not install packages due to an OSError: {error}")
            sys.exit(1)
        return False
    finally:
        os.close(given.folder)


def take(given: store.Given, wanted: pip_arguments.PipRequest, before: dict[str, tuple[str, str]]) -> bool:
    """Copies the packages that are not here yet."""
    versions = {name: version for name, (version, _) in before.items()}
    target = distributions.base()
    if target is None or not store.fits(given, versions):
        return False
    new = {name: version for name, version in given.added.items() if versions.get(name) != version}
    replaced = [name for name in new if name in versions]
    if replaced and uninstall(replaced):
        return False
    there = set(given.added) - set(new)
    os.makedirs(os.path.join(target, distributions.LIBRARY), exist_ok=True)
    store.Copying(store.files_of(given.folder, there) if there else set()).copy(given.folder, target)
    tell_satisfied(wanted, {name: found for name, found in before.items() if name not in new})
    if new and not wanted.quiet:
        tell(f"Installing collected packages: {', '.join(new)}")
        tell("Successfully installed " + " ".join(f"{name}-{version}" for name, version in sorted(new.items())))
    return True


def uninstall(names: list[str]) -> int:
    """Uninstalls with pip itself, which knows the files of each package."""
    arguments = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "uninstall", "-y", *names]
    return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(sys.executable, arguments, os.environ), 0)[1])


def is_satisfied(requirement: str, installed: dict[str, tuple[str, str]]) -> bool:
    found = pip_arguments.pinned(requirement)
    if found is None:
        return False
    known = installed.get(distributions.normal(found[0]))
    return known is not None and found[1] in (None, known[0])


def tell_satisfied(wanted: pip_arguments.PipRequest, installed: dict[str, tuple[str, str]]) -> None:
    if wanted.quiet:
        return
    for requirement in wanted.requirements:
        if is_satisfied(requirement, installed):
            name = (pip_arguments.pinned(requirement) or (requirement, None))[0]
            version, folder = installed[distributions.normal(name)]
            tell(f"Requirement already satisfied: {requirement} in {folder} ({version})")


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
