"""Parses pip command lines that ask for something plain: packages by name, from the usual index.

pip itself handles everything else.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_QUIET = frozenset(("-q", "-qq", "-qqq", "--quiet"))
_WITHOUT_EFFECT = frozenset(
    (
        "--no-input",
        "--no-color",
        "--no-cache-dir",
        "--no-warn-script-location",
        "--no-warn-conflicts",
        "--disable-pip-version-check",
        "--break-system-packages",
        "--root-user-action=ignore",
        "--progress-bar=off",
        "--progress-bar=on",
    )
)
# Environment settings that do not affect what is installed.
_SETTINGS_WITHOUT_EFFECT = frozenset(
    (
        "PIP_RETRIES",
        "PIP_NO_INPUT",
        "PIP_NO_COLOR",
        "PIP_PROGRESS_BAR",
        "PIP_NO_CACHE_DIR",
        "PIP_CACHE_DIR",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_TIMEOUT",
        "PIP_ROOT_USER_ACTION",
        "PIP_BREAK_SYSTEM_PACKAGES",
        "PIP_DISABLE_PIP_VERSION_CHECK",
    )
)
_ARCHIVES = (".whl", ".zip", ".gz", ".bz2", ".xz", ".tar", ".tgz", ".tbz", ".txz")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_CHARACTERS_AT_MOST = 300
_REQUIREMENTS_AT_MOST = 200
_FILE_BYTES_AT_MOST = 64 * 1024


class PipRequest:
    """The requested packages, and pip's options for them."""

    def __init__(self) -> None:
        self.requirements: list[str] = []
        self.quiet = False
        self.upgrade = False
        self.pre = False
        self.no_deps = False


def plain(words: list[str]) -> PipRequest | None:
    """Parses a command line. Returns None if it is more than the installation of packages by name."""
    if words[:1] != ["install"]:
        return None
    wanted = PipRequest()
    rest = iter(words[1:])
    for word in rest:
        if word in ("-r", "--requirement"):
            word = f"-r{next(rest, '')}"
        if word.startswith(("-r", "--requirement=")):
            lines = requirements_in(word.removeprefix("-r").removeprefix("--requirement="))
            if lines is None:
                return None
            wanted.requirements += lines
        elif word in _QUIET:
            wanted.quiet = True
        elif word in ("-U", "--upgrade"):
            wanted.upgrade = True
        elif word == "--pre":
            wanted.pre = True
        elif word == "--no-deps":
            wanted.no_deps = True
        elif word.startswith("-"):
            if word not in _WITHOUT_EFFECT:
                return None
        else:
            wanted.requirements.append(word.strip())
    some = 0 < len(wanted.requirements) <= _REQUIREMENTS_AT_MOST
    return wanted if some and all(map(is_plain, wanted.requirements)) else None


def requirements_in(path: str) -> list[str] | None:
    """Returns the requirements in a file, or None if it contains anything else."""
    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_BYTES_AT_MOST + 1)
    except OSError:
        return None
    if len(text) > _FILE_BYTES_AT_MOST:
        return None
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
    found = [line.partition(" #")[0].strip() for line in lines if line and not line.startswith("#")]
    return None if any(line.startswith("-") or line.endswith("\\") for line in found) else found


def is_plain(requirement: str) -> bool:
    """Whether it is no path, address or option. The engine checks more closely."""
    return (
        len(requirement) <= _CHARACTERS_AT_MOST
        and requirement.isascii()
        and requirement.isprintable()
        and requirement[:1].isalnum()
        and not any(character in requirement for character in "/@:\\$")
        and not requirement.endswith(_ARCHIVES)
    )


def pinned(requirement: str) -> tuple[str, str | None] | None:
    """Returns name and version of a requirement that has nothing else, or None. The version may be missing."""
    name, equal, version = requirement.partition("==")
    name, version = name.strip(), version.strip()
    if not _NAME.issuperset(name) or (equal and not (version and _NAME.issuperset(version))):
        return None
    return name, version if equal else None


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that change what pip does."""
    found = {name: value for name, value in environment.items() if name.startswith("PIP_")}
    return {name: value for name, value in found.items() if name not in _SETTINGS_WITHOUT_EFFECT}


def has_configuration(prefix: str, environment: Mapping[str, str], system: str = "/etc") -> bool:
    """Whether configuration files for pip exist."""
    return any(os.path.exists(path) for path in configuration_files(prefix, environment, system))


def wants_no_index(prefix: str, environment: Mapping[str, str], system: str = "/etc") -> bool:
    """Whether one of those files forbids pip to use an index."""
    for path in configuration_files(prefix, environment, system):
        try:
            with open(path, "rb") as file:
                lines = file.read(_FILE_BYTES_AT_MOST).splitlines()
        except OSError:
            continue
        if any(line.lstrip().startswith(b"no-index") for line in lines):
            return True
    return False


def configuration_files(prefix: str, environment: Mapping[str, str], system: str) -> list[str]:
    home = environment.get("HOME", "/root")
    own = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    folders = (system, f"{system}/xdg/pip", f"{own}/pip", f"{home}/.pip", prefix)
    return [f"{folder}/pip.conf" for folder in folders]
