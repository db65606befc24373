"""Which addresses are public. All others are reached only if the owner has listed them."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from ramet.protocol.network.rules import Address

_Block = ipaddress.IPv4Network | ipaddress.IPv6Network

# Metadata services of clouds at an address that looks public. The others are link-local or private.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})

# IPv6 addresses that stand for an IPv4 address, to which a gateway on the way may connect: NAT64 (RFC 6052, 8215),
# 6to4, Teredo, and the forms that kernels themselves treat as IPv4.
_STANDING_FOR_OTHERS: tuple[_Block, ...] = tuple(
    ipaddress.ip_network(block)
    for block in (
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2002::/16",
        "2001::/32",
    )
)
# Ranges that some versions of `ipaddress` call global although they are not: 6to4 relays, old site-local addresses, and
# ranges for routers and experiments.
_ODD: tuple[_Block, ...] = tuple(
    ipaddress.ip_network(block)
    for block in ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4",
                  "fec0::/10", "100::/64", "2001:db8::/32", "3fff::/20", "5f00::/16")
)  # fmt: skip


def plain(address: Address) -> Address:
    """The IPv4 address inside an IPv4-mapped one, which is what the kernel connects to.

    Others are returned unchanged.
    """
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def why_not_public(address: Address, of_host: Collection[Address] = ()) -> str | None:
    """Why an address is not public, in words. None: it is public. ``of_host``: the addresses of this machine."""
    if address in of_host:
        return "an address of the host itself"
    if address in _METADATA:
        return "a metadata address"
    if address.is_unspecified or address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address.version == 6 and any(address in block for block in _STANDING_FOR_OTHERS):
        return "an IPv6 address that stands for one of IPv4"
    if not address.is_global or any(address.version == block.version and address in block for block in _ODD):
        return "a private or reserved address"
    return None
