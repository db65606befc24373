"""Network rules: which hosts a sandbox may reach. Parses them from text and matches names and addresses. No I/O."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from ramet.errors import InvalidArgument
from ramet.protocol.argument_errors import kind_of, must, wrong_argument
from ramet.protocol.lazy_dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Block = ipaddress.IPv4Network | ipaddress.IPv6Network

# The ports of a rule that names none.
USUAL_PORTS = (80, 443)
OPEN = "open"
NONE = "none"

_HOW_TO_WRITE = (
    "write a host name ('api.example'), all names below one ('*.example'), an address, or a block of addresses "
    "('10.0.0.0/8'), followed by ':PORT', ':FIRST-LAST' or ':*' for other ports than 80 and 443"
)
_INSTEAD_OF_ALL = f"to allow every public host, give {OPEN!r} alone when the sandbox is made; here, {_HOW_TO_WRITE}"
# Characters of host names in practice; names of services contain underscores.
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A quick test to tell addresses from names: the ipaddress module is slow to reject a name.
_LIKE_AN_ADDRESS = re.compile(r"[0-9a-fA-F:./]+")
_PORTS = re.compile(r"(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Rule:
    """Hosts and ports. ``str`` gives the canonical text; rules with the same meaning are equal."""

    name: str | None  # the host's name; for a pattern, the domain above all hosts it matches
    below: bool  # True for a pattern
    block: _Block | None  # addresses, instead of a name
    ports: tuple[tuple[int, int], ...]  # first and last port of each range

    def __str__(self) -> str:
        if self.block is not None:
            host = str(self.block)
            if self.block.prefixlen == self.block.max_prefixlen:
                host = str(self.block.network_address)
            if self.block.version == 6:
                host = f"[{host}]"
        else:
            host = f"*.{self.name}" if self.below else str(self.name)
        if self.ports == _ranges(None):
            return host
        first, last = self.ports[0]
        if (first, last) == (1, 65535):
            return f"{host}:*"
        return f"{host}:{first}" if first == last else f"{host}:{first}-{last}"

    def has_port(self, port: int) -> bool:
        return any(first <= port <= last for first, last in self.ports)

    def means_name(self, name: str) -> bool:
        """Whether the rule matches this name, on any port. ``name`` is normalised by ``host_name``."""
        if self.name is None:
            return False
        return name.endswith(f".{self.name}") if self.below else name == self.name

    def means_address(self, address: Address) -> bool:
        return self.block is not None and address.version == self.block.version and address in self.block

    def covers(self, other: Rule) -> bool:
        """Whether this rule allows everything that the other one allows."""
        for first, last in other.ports:
            if not any(mine_first <= first and last <= mine_last for mine_first, mine_last in self.ports):
                return False
        if self.block is not None and other.block is not None:
            return self.block.version == other.block.version and other.block.subnet_of(self.block)  # type: ignore[arg-type]
        if self.name is None or other.name is None:
            return False
        if self.below:
            return other.name.endswith(f".{self.name}") or (other.below and other.name == self.name)
        return not other.below and other.name == self.name


def parse_rule(text: object, argument: str = "network") -> Rule:
    """Parse a rule. Raise InvalidArgument that says what to write instead."""
    if not isinstance(text, str):
        raise must(argument, "be a string", kind_of(text), subject=f"each rule in {argument}", hint=_HOW_TO_WRITE)
    return _parsed(text, argument)


@lru_cache(maxsize=2048)  # sandboxes of one program mostly have the same rules, and both sides parse each
def _parsed(text: str, argument: str) -> Rule:
    written = text.strip()
    if not written or len(written) > 300:
        raise _wrong(argument, text, "is empty" if not written else "is too long")
    if "://" in written or written.startswith("//"):
        raise _wrong(argument, text, "is a URL; a rule names a host and ports, not a path")
    if written == OPEN:
        raise wrong_argument(argument, f"the rule {text!r} in {argument} would match every host", hint=_INSTEAD_OF_ALL)
    if written.lower() == NONE:  # the word that means no network elsewhere, and not a host
        raise wrong_argument(
            argument,
            f"the rule {text!r} in {argument} would match a host of that name",
            hint="leave the list empty to allow no host",
        )
    host, ports = _split(written, argument, text)
    if host == "*":
        raise wrong_argument(
            argument, f"the rule {text!r:.100} in {argument} would match every host", hint=_INSTEAD_OF_ALL
        )
    if host.lower() == OPEN:
        raise wrong_argument(
            argument,
            f"the rule {text!r:.100} in {argument} is wrong: {OPEN!r} is not a host and takes no port",
            hint=_INSTEAD_OF_ALL,
        )
    block = _block(host)
    if block is not None:
        _check_block(host, block, argument, text)
        return Rule(None, False, block, _ranges(ports))
    if "/" in host:
        raise _wrong(argument, text, "contains a path, or is not a valid block of addresses")
    below = host.startswith("*.")
    name = host_name(host[2:] if below else host)
    if name is None:
        problem = "uses '*' other than as its whole first part" if "*" in host else "is not a valid host name"
        raise _wrong(argument, text, problem)
    if not below and name in (OPEN, NONE):
        # However it was spelled ('open.'): in canonical form the receiver would read it as that word.
        raise wrong_argument(
            argument, f"the rule {text!r:.100} in {argument} would match a host called {name!r}", hint=_HOW_TO_WRITE
        )
    return Rule(name, below, None, _ranges(ports))


def host_name(text: str) -> str | None:
    """Return a name as rules compare it: lower case, ASCII, no trailing dot. Return None if it is not a name."""
    name = text[:-1] if text.endswith(".") else text
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    name = name.lower()
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    # Some programs read a name whose last part is a number as an address: 1.2.3, 0x7f.1.
    return None if labels[-1].isdigit() or re.fullmatch("0x[0-9a-f]*", labels[-1]) else name


def host_address(text: str) -> Address | None:
    """Parse an address, with or without brackets. Return None for anything else, including odd forms of IPv4."""
    inside = _without_brackets(text)
    if not _LIKE_AN_ADDRESS.fullmatch(inside):
        return None
    try:
        return ipaddress.ip_address(inside)
    except ValueError:
        return None


def _without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _split(written: str, argument: str, text: object) -> tuple[str, tuple[int, int] | None]:
    if written.startswith("["):
        host, bracket, rest = written.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _wrong(argument, text, "has a bracket that is not closed, or unexpected text after it")
        return host + bracket, _port_range(rest[1:], argument, text) if rest else None
    if written.count(":") > 1:  # IPv6 needs brackets only before a port
        before, _, last = written.rpartition(":")
        if last in ("", "*") or "-" in last or (last.isdigit() and host_address(before) is not None):
            hint = f"write '[{before}]:{last}' for the address and a port, or '[{written}]' for the address alone"
            raise wrong_argument(
                argument,
                f"the rule {text!r:.100} in {argument} is ambiguous: an address, or an address and a port",
                hint=hint,
            )
        return written, None
    host, colon, ports = written.partition(":")
    return host, _port_range(ports, argument, text) if colon else None


def _port_range(text: str, argument: str, whole: object) -> tuple[int, int]:
    if text == "*":
        return 1, 65535
    match = _PORTS.fullmatch(text)
    first = int(match["first"]) if match else 0
    last = int(match["last"]) if match and match["last"] else first
    if not 1 <= first <= last <= 65535:
        raise _wrong(argument, whole, f"has the invalid port {text!r:.40}")
    return first, last


def _ranges(ports: tuple[int, int] | None) -> tuple[tuple[int, int], ...]:
    return (ports,) if ports is not None else tuple((port, port) for port in USUAL_PORTS)


def _block(host: str) -> _Block | None:
    inside = _without_brackets(host)
    if not _LIKE_AN_ADDRESS.fullmatch(inside):
        return None
    try:
        return ipaddress.ip_network(inside, strict=False)
    except ValueError:
        return None


def _check_block(host: str, block: _Block, argument: str, text: object) -> None:
    """Refuse a block with bits set behind its prefix: it would match more than its author may have meant."""
    address, slash, _ = _without_brackets(host).partition("/")
    if slash and ipaddress.ip_address(address) != block.network_address:
        whole, one = str(block), address
        if block.version == 6:
            whole, one = f"[{block}]", f"[{address}]"
        hint = f"write {whole!r} for the whole block, or {one!r} for the address"
        raise wrong_argument(
            argument, f"the rule {text!r:.100} in {argument} is neither a whole block nor a single address", hint=hint
        )


def _wrong(argument: str, text: object, problem: str) -> InvalidArgument:
    return wrong_argument(argument, f"the rule {text!r:.100} in {argument} {problem}", hint=_HOW_TO_WRITE)
