"""Compares the lists of names of two namespaces, as two guests have described them."""

from __future__ import annotations

from ramet.protocol.guest import GuestNames, Named
from ramet.protocol.values.forks import Change, NameChange, NameValue


def compare_names(before: GuestNames, after: GuestNames) -> tuple[tuple[NameChange, ...], tuple[str, ...]]:
    """The changes that lead from one namespace to the other, and names that could not be compared."""
    changes, uncompared = [], []
    for name in sorted(before.names.keys() | after.names.keys()):
        change = _compare(name, before, after)
        if change is not None:
            changes.append(change)
        elif before.names[name].fingerprint is None or after.names[name].fingerprint is None:
            uncompared.append(name)
    return tuple(changes), tuple(uncompared)


def _compare(name: str, before: GuestNames, after: GuestNames) -> NameChange | None:
    old, new = before.names.get(name), after.names.get(name)
    if old is None or new is None:
        # Where some were left out for their number, one that is missing may be one of those.
        missing_in = before if old is None else after
        kind: Change = "added" if old is None else "removed"
        return NameChange(name, kind, _value(old), _value(new), approximate=bool(missing_in.omitted))
    approximate = old.fingerprint is None or new.fingerprint is None
    # Without two fingerprints only what can be seen from outside is compared.
    same = old[:3] == new[:3] if approximate else (old.type, old.fingerprint) == (new.type, new.fingerprint)
    return None if same else NameChange(name, "changed", _value(old), _value(new), approximate)


def _value(named: Named | None) -> NameValue | None:
    return None if named is None else NameValue(named.type, named.value, named.size_bytes)
