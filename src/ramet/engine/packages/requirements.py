"""Reads requests for packages: names and versions only, nothing that pip could take for a path, URL or option."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ramet.protocol.lazy_dataclasses import dataclass

REQUEST_BYTES_AT_MOST = 64 * 1024
_REQUIREMENTS_AT_MOST = 200
_CHARACTERS_AT_MOST = 300
_SETTINGS_AT_MOST = 50

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
# `requirement` collapses blanks before matching. With ` *` in place of ` ?`, runs of blanks could be matched in so many
# ways that backtracking takes seconds.
_CLAUSE = r"(?:===|==|~=|!=|<=|>=|<|>) ?[A-Za-z0-9][A-Za-z0-9.*+!_-]{0,63}"
# A marker compares a few well-known names with strings. These characters spell no URL, path or option.
_MARKER = r"[A-Za-z0-9_. \"'<>=!()~-]{1,200}"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME}) ?(?P<extras>\[ ?{_NAME}(?: ?, ?{_NAME})* ?\])?"
    rf" ?(?P<clauses>{_CLAUSE}(?: ?, ?{_CLAUSE})*)? ?(?:;(?P<marker>{_MARKER}))?"
)
_PINNED = re.compile(r"[a-z0-9-]+(?:\[[^\]]*\])?==[^=*,;]+")
# pip looks for a file if a name ends like one.
_LIKE_A_FILE = (".whl", ".zip", ".gz", ".bz2", ".xz", ".tar", ".tgz", ".tbz", ".txz", ".lzma")


class NotPlain(Exception):
    """The request is more than names and versions; it is left to pip in the sandbox."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements in a canonical order and spelling, so that equal requests have equal keys."""

    requirements: tuple[str, ...]
    upgrade: bool = False
    pre: bool = False
    no_deps: bool = False

    @property
    def all_pinned(self) -> bool:
        """Whether every requirement names exactly one version."""
        return all(_PINNED.fullmatch(one) for one in self.requirements)

    def header(self) -> dict[str, object]:
        return {
            "requirements": list(self.requirements),
            "upgrade": self.upgrade,
            "pre": self.pre,
            "no_deps": self.no_deps,
        }


def read_request(line: bytes) -> tuple[Requirements, dict[str, str]]:
    """Read a request and pip's settings in its environment. The line is untrusted. Raises NotPlain."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        raise NotPlain("not JSON") from None
    if not isinstance(asked, dict):
        raise NotPlain("not an object")
    requirements = asked.get("requirements")
    if not isinstance(requirements, list) or not 0 < len(requirements) <= _REQUIREMENTS_AT_MOST:
        raise NotPlain(f"not between 1 and {_REQUIREMENTS_AT_MOST} requirements")
    wanted = Requirements(
        requirements=tuple(sorted({requirement(one) for one in requirements})),
        upgrade=_flag(asked, "upgrade"),
        pre=_flag(asked, "pre"),
        no_deps=_flag(asked, "no_deps"),
    )
    return wanted, _settings(asked.get("settings", {}))


def requirement(text: object) -> str:
    """The canonical spelling of a requirement: name, extras, versions and marker. Raises NotPlain for anything else."""
    if not isinstance(text, str) or len(text) > _CHARACTERS_AT_MOST or not text.isascii():
        raise NotPlain("a requirement that is no text, or too long, or not ASCII")
    found = _REQUIREMENT.fullmatch(" ".join(text.split()))
    if found is None or found["name"].lower().endswith(_LIKE_A_FILE):
        raise NotPlain("a requirement that is not a name with versions")
    name = re.sub(r"[-_.]+", "-", found["name"]).lower()
    extras = ",".join(sorted(_items(found["extras"].strip("[]")))) if found["extras"] else ""
    clauses = ",".join(sorted(_items(found["clauses"]))) if found["clauses"] else ""
    marker = found["marker"].strip() if found["marker"] else ""
    return name + (f"[{extras}]" if extras else "") + clauses + (f" ; {marker}" if marker else "")


def _items(text: str) -> set[str]:
    return {"".join(item.split()) for item in text.split(",")}


def _flag(asked: Mapping[str, object], name: str) -> bool:
    value = asked.get(name, False)
    if not isinstance(value, bool):
        raise NotPlain(f"{name} is not true or false")
    return value


def _settings(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or len(found) > _SETTINGS_AT_MOST:
        raise NotPlain("settings that are no object, or too many")
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in found.items()):
        raise NotPlain("settings that are not texts")
    return found
