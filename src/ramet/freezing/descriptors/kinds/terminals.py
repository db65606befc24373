"""Pseudo terminals: masters and slaves by index. The kernel does not show what they have buffered, so it is lost."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping

from ramet.freezing.descriptors.access import Opened, ProcessAccess
from ramet.freezing.descriptors.bounds import MOST_TERMINALS, too_much
from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.recipes import Description, TerminalRecipe, Thing

_FIRST_SLAVE_MAJOR, _LAST_SLAVE_MAJOR = 136, 143
_TCGETS2, _TCSETS2, _SETTINGS_BYTES = 0x802C542A, 0x402C542B, 44
_TIOCGWINSZ, _TIOCSWINSZ = 0x5413, 0x5414
_TIOCGPTLCK, _TIOCSPTLCK = 0x80045439, 0x40045431
_TIOCGPKT, _TIOCPKT = 0x80045438, 0x5420
_FIONREAD = 0x541B
_O_NOCTTY = 0o400


def is_terminal(opened: Opened, status: os.stat_result) -> bool:
    return "tty-index" in opened.facts or _FIRST_SLAVE_MAJOR <= os.major(status.st_rdev) <= _LAST_SLAVE_MAJOR


def read_terminal(access: ProcessAccess, opened: Opened, status: os.stat_result) -> Thing:
    master = "tty-index" in opened.facts
    index = (os.major(status.st_rdev) - _FIRST_SLAVE_MAJOR) * 256 + os.minor(status.st_rdev)
    if master:
        index = int(opened.facts["tty-index"])
    if index >= MOST_TERMINALS:
        raise too_much(f"it has terminal {index} open, and a sandbox has {MOST_TERMINALS}")
    with access.copy(opened.number) as copy:
        try:
            settings = fcntl.ioctl(copy, _TCGETS2, bytes(_SETTINGS_BYTES))
            window = fcntl.ioctl(copy, _TIOCGWINSZ, bytes(8))
            waiting = int.from_bytes(fcntl.ioctl(copy, _FIONREAD, bytes(4)), "little")
            locked = int.from_bytes(fcntl.ioctl(copy, _TIOCGPTLCK, bytes(4)), "little") if master else 0
            packets = int.from_bytes(fcntl.ioctl(copy, _TIOCGPKT, bytes(4)), "little") if master else 0
        except OSError:  # the other side is closed
            return access.dead(opened)
    if waiting:
        access.lost.append(f"terminal {opened.number}: {waiting} bytes that wait in it")
    return TerminalRecipe(index, master, settings, window, locked, packets)


def make_terminals(script: CallList, terminals: Mapping[int, tuple[Description, TerminalRecipe]]) -> dict[int, int]:
    """Make the terminals.

    The kernel numbers them from 0 in each pod, so those in between are made too, and closed again.
    """
    slots: dict[int, int] = {}
    if not terminals:
        return slots
    top = max(thing.index for _, thing in terminals.values())
    # Each open of ptmx takes the lowest free index, so opening them in order reproduces the numbers.
    made = [
        script.create("make a terminal", "open", b"/dev/pts/ptmx\0", os.O_RDWR | _O_NOCTTY, 0) for _ in range(top + 1)
    ]
    unused = set(made)
    # A slave can only be opened while its master is unlocked. Locks are restored at the end.
    for thing in (thing for _, thing in terminals.values() if not thing.master):
        script.call("unlock a terminal", "ioctl", made[thing.index], _TIOCSPTLCK, bytes(4))
    for place, (each, thing) in terminals.items():
        if thing.master:
            slots[place] = slot = made[thing.index]
            unused.discard(slot)
        else:
            path = b"/dev/pts/%d\0" % thing.index
            slots[place] = slot = script.create("open a terminal", "open", path, each.flags | _O_NOCTTY, 0)
        script.call("set a terminal's modes", "ioctl", slot, _TCSETS2, thing.settings)
        script.call("set a terminal's window", "ioctl", slot, _TIOCSWINSZ, thing.window)
        if thing.packets:
            script.call("set a terminal's packet mode", "ioctl", slot, _TIOCPKT, b"\1\0\0\0")
        script.set_flags("set a terminal's flags", slot, each.flags)
    # Last, because a locked terminal cannot be opened.
    for place, (_, thing) in terminals.items():
        if thing.master and thing.locked:
            script.call("lock a terminal", "ioctl", slots[place], _TIOCSPTLCK, b"\1\0\0\0")
    for slot in unused:
        script.drop(slot)
    return slots
