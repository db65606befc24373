"""`os.fork()` in a cell: the copy runs on to the end of its cell and must not be taken for the REPL."""

from __future__ import annotations

import os

from ramet_guest.channel import Channel


def tell_children_apart(channel: Channel) -> None:
    """Has every forked child close its copy of the control socket at birth."""
    os.register_at_fork(after_in_child=channel.abandon)
