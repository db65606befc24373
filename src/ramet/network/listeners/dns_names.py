"""DNS for programs that know no proxy: over UDP, with a stand-in address for each name that may be reached.

The address stands for the name and nothing else: a connection to it arrives at the proxy, which then resolves the name.
So no program learns or chooses the address that is really connected to.

    message:   id (2), flags (2), counts of questions, answers, authorities, additionals (2 each), then these
    question:  name (length and label, ..., 0), type (2), class (2)
"""

from __future__ import annotations

import struct
from hashlib import sha256
from ipaddress import IPv4Address

from ramet.isolation.kernel.packet_rules import NAMES_BLOCK
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.rules import Address, host_name

NAMES_AT_MOST = 4096
QUERY_BYTES_AT_MOST = 512

_HEAD = struct.Struct("!HHHHHH")
_RESPONSE, _OPCODE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x7800, 0x0100, 0x0080
_A, _INTERNET = 1, 1
_SECONDS_TO_LIVE = 60
OK, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED = range(5)


@dataclass(frozen=True, slots=True)
class DnsQuery:
    """A query for one name."""

    id: int
    flags: int
    question: bytes  # as received; copied into the answer
    name: str | None  # in the form that rules compare; None: not a host name
    written: str  # as received, for the log
    kind: int

    @property
    def wants_address(self) -> bool:
        return self.kind == _A


def read_query(data: bytes) -> DnsQuery | None:
    """Parse a query. None: it cannot be answered."""
    if not _HEAD.size < len(data) <= QUERY_BYTES_AT_MOST:
        return None
    number, flags, questions, answers, authorities, _ = _HEAD.unpack_from(data)
    if flags & (_RESPONSE | _OPCODE) or (questions, answers, authorities) != (1, 0, 0):
        return None
    labels: list[bytes] = []
    at = _HEAD.size
    while at < len(data) and data[at]:
        length = data[at]
        if length > 63 or at + 1 + length >= len(data):  # a compression pointer, or truncated
            return None
        labels.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    if at + 5 > len(data):
        return None
    kind, class_ = struct.unpack_from("!HH", data, at + 1)
    if class_ != _INTERNET:
        return None
    written = b".".join(labels).decode("latin-1")
    return DnsQuery(number, flags, data[_HEAD.size : at + 5], host_name(written), written, kind)


def answer(query: DnsQuery, code: int, address: IPv4Address | None = None) -> bytes:
    """The answer to a query, with an address or without."""
    flags = _RESPONSE | query.flags & _RECURSION_DESIRED | _RECURSION_AVAILABLE | code
    head = _HEAD.pack(query.id, flags, 1, int(address is not None), 0, 0)
    if address is None:
        return head + query.question
    # 0xc00c is a pointer to the name in the question.
    record = struct.pack("!HHHIH", 0xC00C, _A, _INTERNET, _SECONDS_TO_LIVE, 4) + address.packed
    return head + query.question + record


class DnsNames:
    """The names of one sandbox and their stand-in addresses.

    A name usually gets the same address, also in another sandbox and after a restart of the proxy: programs keep
    addresses, and forks of a sandbox keep what it had.
    """

    def __init__(self) -> None:
        self._names: dict[Address, str] = {}
        self._addresses: dict[str, IPv4Address] = {}

    def __len__(self) -> int:
        return len(self._names)

    def address_of(self, name: str) -> IPv4Address | None:
        """The stand-in for a name. None: there are too many names already."""
        known = self._addresses.get(name)
        if known is not None:
            return known
        if len(self._names) >= NAMES_AT_MOST:
            return None
        number = int.from_bytes(sha256(name.encode()).digest()[:4], "big")
        while True:
            # Not the first or the last address of the block, which some programs treat specially.
            address = NAMES_BLOCK[1 + number % (NAMES_BLOCK.num_addresses - 2)]
            if address not in self._names:
                # Two names with the same hash: take the next free address.
                break
            number += 1
        self._names[address], self._addresses[name] = name, address
        return address

    def name_of(self, address: Address) -> str | None:
        return self._names.get(address)

    def copy(self) -> DnsNames:
        made = DnsNames()
        made._names, made._addresses = dict(self._names), dict(self._addresses)
        return made
