"""Boots a template: descriptors, streams, IPython, preloaded libraries, warm-up, memory.

Then sends READY and serves.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from typing import Any

from ramet_guest.cells import fallback
from ramet_guest.cells.interrupts import UserCodeGate
from ramet_guest.channel import ControlChannel, encode_header
from ramet_guest.processes.forked_children import tell_children_apart
from ramet_guest.processes.output import SPARES, Output, unbuffer_c_stdio
from ramet_guest.wire import READY, REPL_CONTROL

OLDEST_IPYTHON = 8


def main(options_json: str, folder: str) -> None:
    """Boots and serves. `folder` holds the guest package, and perhaps a `site-packages` with IPython."""
    options: dict[str, Any] = json.loads(options_json)
    repl = prepare(options, folder)
    announce(repl, loaded_files())
    repl.serve()


def prepare(options: dict[str, Any], folder: str) -> Any:
    """Does everything up to READY."""
    # As in a REPL: modules are found in the current folder, and there is no script.
    sys.path.insert(0, "")
    sys.argv[:] = [""]
    # Programs that cells start must not inherit the control socket or the spare pipes.
    for descriptor in (REPL_CONTROL, *SPARES.values()):
        os.set_inheritable(descriptor, False)
    unbuffer_c_stdio()
    fallback.install(os.path.join(folder, "site-packages"))

    # Everything below needs IPython.
    check_ipython()
    from ramet_guest.cells import magics, no_network, postmortem
    from ramet_guest.cells.shell import make_shell
    from ramet_guest.cells.sources import teach_inspect

    close_file_of_ipython()
    # Now, although only later cells use it: its file may be replaced by another version meanwhile.
    from ramet_guest.processes import scripts  # noqa: F401
    from ramet_guest.repl import Repl
    from ramet_guest.waking import memory, warmup

    channel = ControlChannel(REPL_CONTROL)
    gate = UserCodeGate()
    output = Output()
    repl = Repl(channel, output, gate, make_shell())
    repl.commands_folder = options.get("commands")
    magics.register(repl)
    postmortem.register(repl)
    teach_inspect(repl.sources)
    tell_children_apart(channel)
    no_network.install()
    # After the REPL, which sets the gate's callbacks; before the preloaded modules, the first code that is not ours.
    gate.install()
    for name in options.get("preload", ()):
        importlib.import_module(name)
    if options.get("warm_up", True):
        warmup.run(repl)
    memory.settle(everything=bool(options.get("builtin", False)))
    return repl


def check_ipython() -> None:
    import IPython

    if IPython.version_info[0] < OLDEST_IPYTHON:
        sys.exit(
            f"IPython {IPython.__version__} of this interpreter is too old: cells need {OLDEST_IPYTHON} or newer\n\n"
            f"hint: {sys.executable} -m pip install --upgrade ipython; or remove it, then Ramet brings its own"
        )


def close_file_of_ipython() -> None:
    """Closes the /dev/null that IPython before 8.10 opens and never uses: a template must have no open file."""
    from IPython.utils import io

    file = getattr(io, "devnull", None)
    if file is not None:
        file.close()


def loaded_files() -> bytes:
    """The files that modules came from and the folders that they were looked for in, each ended by a zero.

    An image of this template is good only as long as none of them changes.
    """
    found = {path for path in sys.path if path.startswith("/")}
    for module in tuple(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or getattr(module, "__file__", None)
        if isinstance(origin, str) and origin.startswith("/"):
            found.add(origin)
    # What changes sys.path, and so what would be imported.
    for folder in tuple(found):
        if os.path.isdir(folder):
            found.update(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth"))
    found.add(os.path.join(sys.prefix, "pyvenv.cfg"))
    return b"".join(os.fsencode(path) + b"\0" for path in sorted(found))


def announce(repl: Any, loaded: bytes) -> None:
    import IPython

    header = {"pid": repl.channel.pid, "version": platform.python_version(), "ipython": IPython.__version__}
    repl.channel.send(READY, encode_header(header), loaded)
