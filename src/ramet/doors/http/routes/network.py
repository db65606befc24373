"""The network of a sandbox over HTTP: its rules, the connections it tried, and changes while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.requests import json_answers
from ramet.doors.http.requests.bodies import JsonBody
from ramet.doors.http.requests.disconnects import ask
from ramet.doors.http.requests.exchange import RequestExchange, Route
from ramet.doors.http.routes import creation
from ramet.protocol import calls, fields
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.specs import NetworkSpec, read_rules

_RULES = "an array of rules, such as 'api.example' or '*.example:443'"


@api.operation(
    "network",
    "network",
    "What a sandbox may reach, and what it has tried to",
    {
        200: api.answer(
            "Rules, and the connections that were tried.",
            api.ref("Network"),
            {
                "rules": ["api.example"],
                "denied": [],
                "addresses": {},
                "connections": 256,
                "bytes_per_second": None,
                "total_bytes": None,
                "attempts": [
                    {
                        "time": 1776510028.036,
                        "kind": "connect",
                        "host": "api.example",
                        "port": 443,
                        "allowed": True,
                        "rule": "api.example",
                        "reason": None,
                        "address": "203.0.113.7",
                        "sent_bytes": 512,
                        "received_bytes": 20480,
                        "open": False,
                    }
                ],
                "dropped": 0,
                "raw_tcp": None,
                "closed": None,
            },
        )
    },
    errors=(400, 401, 403, 404, 410, 429, 503),
)
async def _look(exchange: RequestExchange, sandbox_id: str) -> None:
    """GET /v1/sandboxes/{sandbox_id}/network"""
    answer = await ask(exchange, calls.NETWORK, exchange.activity.header(exchange, {"sandbox": sandbox_id}))
    attempts = fields.array(answer.header, "attempts")
    told = {
        **_rules(answer.header),
        "attempts": attempts,
        "dropped": fields.natural(answer.header, "dropped"),
        "raw_tcp": fields.optional_text(answer.header, "raw_tcp"),
        "closed": fields.optional_text(answer.header, "closed"),
    }
    await json_answers.answer_long_json(exchange, told, attempts)


@api.operation(
    "changeNetwork",
    "network",
    "Allow and deny rules from now on",
    {
        200: api.answer(
            "The rules as they are now.",
            api.ref("NetworkRules"),
            {
                "rules": ["api.example", "data.example"],
                "denied": [],
                "addresses": {},
                "connections": 256,
                "bytes_per_second": None,
                "total_bytes": None,
            },
        )
    },
    help=(
        "For connections to come, and for those that are open and not allowed any more. A "
        "sandbox that was made without a network cannot be given one."
    ),
    body=api.body(
        api.record(
            {
                "allow": api.any_of(api.ref("Rules"), {"type": "null"}),
                "deny": api.any_of(api.ref("Rules"), {"type": "null"}),
            },
            required=(),
        ),
        {"allow": ["data.example"], "deny": []},
    ),
)
async def _change(exchange: RequestExchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/network"""
    body = await exchange.read_fields()
    allow, deny = _texts(body, "allow"), _texts(body, "deny")
    body.done()
    if not allow and not deny:
        raise wrong_argument("allow", "allow or deny must have a rule", hint=f"give {_RULES}")
    header = exchange.activity.header(exchange, {"sandbox": sandbox_id, "allow": allow, "deny": deny})
    answer = await ask(exchange, calls.NETWORK_CHANGE, creation.allowed(exchange, header))
    await json_answers.answer_json(exchange, _rules(answer.header))


def _texts(body: JsonBody, name: str) -> list[str]:
    """The rules in a field, checked and normalised."""
    return [str(rule) for rule in read_rules(body.optional_array(name, _RULES), name)]


def _rules(header: Mapping[str, object]) -> dict[str, object]:
    given = fields.mapping(header, "network")
    network = NetworkSpec.read({"ca_pem": None, **given})
    return {
        "rules": rule_texts(network),
        "denied": [str(rule) for rule in network.deny],
        "addresses": dict(network.addresses),
        "connections": network.connections,
        "bytes_per_second": network.bytes_per_second,
        "total_bytes": network.total_bytes,
    }


_NETWORK = "/v1/sandboxes/{sandbox_id}/network"
ROUTES: list[Route] = [("GET", _NETWORK, _look), ("POST", _NETWORK, _change)]
