"""The walls of the proxy. It reads what sandboxes and servers send it; whoever gets hold of it that way should find
nothing: no power, no file but Python's and the resolver's, no program to run, no other process to look into.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - loaded by name when a name is encoded; here, before files are out of sight
import os
import resource
import socket
from dataclasses import dataclass

from ramet.isolation import landlock, powers, refusals
from ramet.isolation.python_files import LIBRARIES, python_folders

# Names, their servers, and certificates of authorities; some distributions keep these elsewhere. Not all of /etc, which
# holds what is for root alone; all the same where the list of name servers lies there as a plain file.
_SETTINGS = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/networks",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ca-certificates",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust",
    "/etc/crypto-policies",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/pki",
    "/var/lib/ca-certificates",
)
_DEVICES = ("/dev/null", "/dev/urandom")
_RESOLVER_FILE = "/etc/resolv.conf"


@dataclass(frozen=True, slots=True)
class Walls:
    landlock: landlock.Standing
    refusals: bool

    @property
    def missing(self) -> list[str]:
        """What this kernel cannot hold, in words. That TCP is left open is meant so."""
        meant = ("TCP (Linux 6.7)", landlock.UNIX_SOCKETS if self.refusals else "")
        found = [what for what in self.landlock.missing if what not in meant]
        return found if self.refusals else [*found, "system calls (seccomp)"]


def lock_down() -> Walls:
    """For good. To be called before there is a second thread."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    powers.drop_capabilities()
    powers.hide_memory()  # also: no core file
    standing = landlock.restrict(
        landlock.Rights(
            read=(*LIBRARIES, *_SETTINGS, *_DEVICES, _resolver_folder(), *python_folders()),
            network=True,
        )
    )
    return Walls(standing, refusals.refuse(reaches=True))


def _resolver_folder() -> str:
    """Where the list of name servers really is: it is written anew while we run, by a rename."""
    return os.path.dirname(os.path.realpath(_RESOLVER_FILE))


def look_up_once() -> None:
    """Have the resolver read what it needs. Its first answer does not matter."""
    try:
        socket.getaddrinfo("localhost", None)
    except OSError:
        pass
