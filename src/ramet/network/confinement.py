"""The walls of the proxy, which reads what sandboxes and servers send it.

An attacker who takes it over that way should find nothing: no privileges, no files but Python's and the resolver's, no
program to run, no other process to look into.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - loaded by name when a name is encoded; here, before files are out of sight
import os
import resource
import socket

from ramet.isolation.own_processes import given_up_calls, landlock, powers
from ramet.isolation.own_processes.python_files import LIBRARIES, python_folders
from ramet.protocol.lazy_dataclasses import dataclass

# Resolver settings and certificate authorities, which some distributions keep elsewhere. Not all of /etc, which holds
# files for root alone; except where /etc/resolv.conf is a plain file, because its folder is needed then.
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
class ProxyWalls:
    """The walls that are in force."""

    landlock: landlock.Standing
    refusals: bool

    @property
    def missing(self) -> list[str]:
        """The restrictions that this kernel cannot enforce, in words. TCP stays open on purpose."""
        meant = ("TCP (Linux 6.7)", landlock.UNIX_SOCKETS if self.refusals else "")
        found = [what for what in self.landlock.missing if what not in meant]
        return found if self.refusals else [*found, "system calls (seccomp)"]


def lock_down() -> ProxyWalls:
    """Put the walls up, permanently. Call it before there is a second thread. Raises OSError."""
    # Use all descriptors that the hard limit grants: each connection takes two.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    powers.drop_capabilities()
    powers.hide_memory()  # and no core files
    standing = landlock.restrict(
        landlock.Rights(
            read=(*LIBRARIES, *_SETTINGS, *_DEVICES, _resolver_folder(), *python_folders()),
            network=True,
        )
    )
    # After drop_capabilities, which sets no_new_privs: the kernel refuses a filter without it (EACCES).
    return ProxyWalls(standing, given_up_calls.refuse(reaches=True))


def _resolver_folder() -> str:
    """The folder that really contains resolv.conf.

    It is replaced by a rename while we run, so a rule for the file would expire.
    """
    return os.path.dirname(os.path.realpath(_RESOLVER_FILE))


def look_up_once() -> None:
    """Make the resolver load what it needs, before files are out of reach. The answer does not matter."""
    try:
        socket.getaddrinfo("localhost", None)
    except OSError:
        pass
