"""The small read-only tree below a pod's writable layer: folders, mount points, and an /etc of its own."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from ramet.protocol.values.specs import Interpreter

_TOP = ("usr", "bin", "sbin", "lib", "lib64", "lib32", "libx32")
_FOLDERS = (
    "etc",
    "root",
    "tmp",
    "home",
    "opt",
    "var/tmp",
    "var/lib",
    "var/cache",
    "var/log",
    "srv",
    "mnt",
    "media",
    "run",
    "dev",
    "proc",
    "sys",
)

GUEST_FOLDER = "/.ramet/ramet_guest"
LIBRARY_FOLDER = "/.ramet/site-packages"
# Our own commands, found before others of the same name because this folder comes first in PATH.
COMMAND_FOLDER = "/.ramet/bin"

# Copied from the host if everybody may read them: how programs find libraries, certificates, time zones and fonts. No
# file with secrets or accounts is among them (shadow, pip.conf, gitconfig and the like are never shown).
_COPIED = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl/openssl.cnf",
    "ssl/certs",
    "ca-certificates.conf",
    "pki/tls/certs",
    "pki/ca-trust",
    "localtime",
    "timezone",
    "mime.types",
    "os-release",
    "debian_version",
    "services",
    "protocols",
    "fonts",
    "locale.alias",
    "bash.bashrc",
    "profile",
    "inputrc",
    "mailcap",
    "magic",
    "login.defs",
    "gai.conf",
    "host.conf",
)

_WRITTEN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost\n",
    "hostname": "sandbox\n",
    "resolv.conf": "nameserver 127.0.0.1\n",  # the sandbox's own resolver, if it has a network
    # Without a network nothing answers at that address, which the resolver reports as UNAVAIL. The second "files" then
    # has the last word and says "not known". The resolver's own error would be "temporary failure", after which
    # programs retry.
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns [!UNAVAIL=return] files\nservices: files\n"
    "protocols: files\n",
    "machine-id": "00000000000000000000000000000000\n",
    "shells": "/bin/sh\n/bin/bash\n",
}


def system_folders() -> tuple[str, ...]:
    """Top-level system folders of the host that are real folders. The others are links into /usr."""
    return tuple(f"/{name}" for name in _TOP if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"))


def system_links() -> tuple[tuple[str, str], ...]:
    """(path, target) of the top-level system folders that are links, as on a host with merged /usr."""
    return tuple((f"/{name}", os.readlink(f"/{name}")) for name in _TOP if os.path.islink(f"/{name}"))


def write_skeleton(folder: str, interpreter: Interpreter, host_etc: str = "/etc") -> None:
    """Fill the empty `folder`. Afterwards every place exists where something will be mounted.

    Builders of pods create nothing in a shown tree, so a missing mount point would make every pod fail. Raises OSError.
    """
    root = Path(folder)
    for name in (*_FOLDERS, *(place.lstrip("/") for place in _mount_points(interpreter))):
        (root / name).mkdir(parents=True, exist_ok=True)
    for at, to in (*system_links(), *interpreter.links):
        link = root / at.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(to)
    for name, text in _WRITTEN.items():
        (root / "etc" / name).write_text(text)
    for name in _COPIED:
        _copy(Path(host_etc) / name, root / "etc" / name)
    (root / "etc/mtab").symlink_to("/proc/self/mounts")
    _write_commands(root / COMMAND_FOLDER.lstrip("/"), interpreter)
    if has_user_site(interpreter.executable):
        major, minor = interpreter.version.split(".")[:2]
        # A user site that does not exist when the interpreter starts is not put on its path, and `pip install --user`
        # later would have no effect.
        (root / f"root/.local/lib/python{major}.{minor}/site-packages").mkdir(parents=True, exist_ok=True)
    # Modes that programs check: a private home, and shared folders with the sticky bit.
    (root / "root").chmod(0o700)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    (root / "var/run").symlink_to("/run")


def has_user_site(executable: str) -> bool:
    """Whether the interpreter searches the home folder for packages. Virtual environments do so only if configured."""
    try:
        lines = (Path(executable).parent.parent / "pyvenv.cfg").read_text(errors="replace").splitlines()
    except OSError:
        return True
    settings = {
        name.strip().lower(): value.strip().lower() for name, _, value in (line.partition("=") for line in lines)
    }
    return settings.get("include-system-site-packages") == "true"


def _write_commands(folder: Path, interpreter: Interpreter) -> None:
    """Write `pip`, which asks the engine before it runs the real pip.

    A shell script, because a "#!" line fails for interpreters with long paths or spaces in them.
    """
    program = (
        f'import sys; sys.path.insert(0, "{os.path.dirname(GUEST_FOLDER)}"); '
        "from ramet_guest.packaging.pip_program import main; main(sys.argv[1:])"
    )
    major, minor = interpreter.version.split(".")[:2]
    folder.mkdir(parents=True)
    command = folder / "pip"
    command.write_text(
        f'#!/bin/sh\nexec {shlex.quote(interpreter.executable)} -ISXutf8 -c {shlex.quote(program)} "$@"\n'
    )
    command.chmod(0o755)
    for name in ("pip3", f"pip{major}.{minor}"):
        (folder / name).symlink_to("pip")


def _mount_points(interpreter: Interpreter) -> Iterable[str]:
    yield from system_folders()
    yield from interpreter.trees
    yield GUEST_FOLDER
    if interpreter.library is not None:
        yield LIBRARY_FOLDER


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder if it can be read. Unreadable entries were not meant for everybody and are left out."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _copy_entry(os.fspath(source), os.fspath(target), tuple(f"{folder}/" for folder in system_folders()), source.name)


def _copy_entry(source: str, target: str, shown: tuple[str, ...], top: str) -> None:
    """Links to what every pod shows stay links: /etc/alternatives would else be a copy of hundreds of programs.

    The first sandbox of every program waits for this, so it does without shutil, which takes three times as long.
    """
    try:
        if os.path.islink(source):
            # To a neighbour in the same folder, or at once into a folder that pods show. Others are looked up.
            to = os.readlink(source)
            if "/" not in to or to.startswith(shown) or (to := os.path.realpath(source)).startswith(shown):
                os.symlink(to, target)
                return
            source = to
        about = os.stat(source)
        if stat.S_ISDIR(about.st_mode):
            if top != "private":
                os.makedirs(target, exist_ok=True)
                with os.scandir(source) as entries:
                    for entry in entries:
                        _copy_entry(entry.path, f"{target}/{entry.name}", shown, entry.name)
        elif stat.S_ISREG(about.st_mode):
            _copy_file(source, target)
    except OSError:
        return


def _copy_file(source: str, target: str) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            while data := os.read(reading, 1 << 20):
                os.write(writing, data)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
