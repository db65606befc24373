"""Handles `os.fork()` in a cell: the child runs to the end of its cell and must not act as the REPL."""

from __future__ import annotations

import os

from ramet_guest.channel import ControlChannel


def tell_children_apart(channel: ControlChannel) -> None:
    """Makes every forked child close its copy of the control socket at once, so that only the parent can answer."""
    os.register_at_fork(after_in_child=channel.abandon)
