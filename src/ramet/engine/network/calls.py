"""Serves the calls of clients about a sandbox's network: its state, changes of rules, exposed ports, connections."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.network.exposed_ports import dial
from ramet.engine.network.network import EngineNetwork
from ramet.engine.network.permissions import check_allowed
from ramet.errors import ProtocolError
from ramet.protocol import calls, fields
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.frames import Frame
from ramet.protocol.network.specs import OWN_PORTS, NetworkSpec, check_network, read_rules
from ramet.protocol.values.allowances import Allowance


async def serve(frame: Frame, sandbox: Sandbox) -> tuple[dict[str, object], socket.socket | None]:
    """Carry out one call. Returns the answer and, for a dial, a connected socket that the caller must close.

    Raises InvalidArgument, NotPermitted, LimitReached, SandboxClosed or Unreachable, as each call does.
    """
    header = frame.header
    if frame.kind == calls.NETWORK:
        return await _network(_of(sandbox)), None
    if frame.kind == calls.NETWORK_CHANGE:
        return await _change(_of(sandbox), header), None
    port = _port(header, sandbox)
    if frame.kind == calls.EXPOSE:
        sandbox.clock.touch()
        return {"port": await sandbox.exposures.expose(port)}, None
    if frame.kind == calls.UNEXPOSE:
        await sandbox.exposures.unexpose(port)
        return {}, None
    if frame.kind == calls.DIAL:
        sandbox.clock.touch()
        return {}, await dial(sandbox.body, port, sandbox.id)
    raise ProtocolError(f"a request of unknown kind {frame.kind}")


async def _network(network: EngineNetwork) -> dict[str, object]:
    # Without the flush the answer could miss attempts of a cell that has already ended: the proxy reports in batches.
    await network.flush()
    log = network.log
    return {
        "network": _header(network.spec),
        "attempts": [attempt.header() for attempt in log.attempts()],
        "dropped": log.dropped,
        "raw_tcp": network.no_raw_tcp,
        "closed": network.closed,
    }


async def _change(network: EngineNetwork, header: Mapping[str, object]) -> dict[str, object]:
    allow, deny = read_rules(fields.texts(header, "allow")), read_rules(fields.texts(header, "deny"))
    changed = network.spec.allowing(allow).denying(deny)
    check_network(changed)
    check_allowed(changed, Allowance.read(header))
    network.become(changed)
    # The proxy handles messages in order, so its answer to the flush proves that it applies the new rules: when this
    # call returns, a host that was just denied is out of reach.
    await network.flush()
    return {"network": _header(changed)}


def _header(spec: NetworkSpec) -> dict[str, object]:
    """The rules without the certificates, which are long and which the client has given itself."""
    return {**spec.header(), "ca_pem": None}


def _of(sandbox: Sandbox) -> EngineNetwork:
    if sandbox.network is None:
        raise wrong_argument(
            "network",
            f"sandbox {sandbox.id} was made without a network",
            hint="make it with network=[...], or over HTTP with egress; an empty list allows nothing yet",
        )
    return sandbox.network


def _port(header: Mapping[str, object], sandbox: Sandbox) -> int:
    port = fields.whole(header, "port")
    if not 1 <= port <= 65535:
        raise must("port", "be from 1 to 65535", port)
    if sandbox.network is not None and port in OWN_PORTS:
        raise wrong_argument("port", f"port {port} belongs to the sandbox's network; choose another one")
    return port
