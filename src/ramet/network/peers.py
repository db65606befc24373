"""One sandbox as the proxy knows it: its current rules, its secrets, its names, and its open connections."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ramet.network.connecting.decisions import Decider
from ramet.network.connecting.resolver import Lookups
from ramet.network.limits import DescriptorBudget, PeerLimits
from ramet.network.listeners.dns_names import DnsNames
from ramet.network.reports import Reports
from ramet.network.secrets.peer_secrets import PeerSecret
from ramet.protocol.network.rules import Address
from ramet.protocol.network.specs import NetworkSpec

if TYPE_CHECKING:
    from ramet.network.connecting.targets import OutgoingConnection


class SandboxPeer:
    """One sandbox as the proxy knows it.

    Owns the rules, limits and secrets by which its connections are decided and counted. Each connection itself belongs
    to its own task.
    """

    def __init__(
        self,
        id: int,
        network: NetworkSpec,
        secrets: Sequence[PeerSecret],
        of_host: Collection[Address],
        entries: Reports,
        lookups: Lookups,
        used_bytes: int = 0,
        descriptors: DescriptorBudget | None = None,
    ) -> None:
        self.id = id
        self.network = network
        self.secrets = tuple(secrets)
        self.decider = Decider(network, of_host)
        self.names = DnsNames()
        self.limits = PeerLimits(network, used_bytes, descriptors)
        self.entries = entries
        self.lookups = lookups
        self.targets: set[OutgoingConnection] = set()
        self._of_host = of_host

    def __repr__(self) -> str:
        return f"<SandboxPeer {self.id}, {len(self.targets)} connections, {self.limits.used_bytes} bytes>"

    def secrets_for(self, name: str, port: int) -> tuple[PeerSecret, ...]:
        """The secrets that requests to a host may carry. ``name`` is in the form of ``host_name``."""
        return tuple(secret for secret in self.secrets if secret.is_for(name, port))

    def change(self, network: NetworkSpec, secrets: Sequence[PeerSecret]) -> None:
        """Put new rules into force, and cut connections that they do not allow."""
        self.network = network
        self.secrets = tuple(secrets)
        self.decider = Decider(network, self._of_host)
        self.limits.change(network)
        # A copy, because `cut` removes from the set. Connections in the making check the rules again when they are
        # made.
        for target in tuple(self.targets):
            why = target.why_no_more()
            if why is not None:
                target.cut(why)

    def close(self) -> None:
        for target in tuple(self.targets):
            target.cut("the sandbox has ended", reset=False)
        self.entries.flush(now=True)
