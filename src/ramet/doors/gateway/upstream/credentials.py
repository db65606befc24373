"""The headers of a request to the upstream: the key, the version of the API, the betas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ramet.doors.gateway.errors import invalid
from ramet.doors.gateway.settings import GatewaySettings

_DEFAULT_VERSION = "2023-06-01"
# Betas that the gateway implements itself. An upstream refuses betas that it does not know.
_OWN_BETAS = ("code-execution-", "files-api-", "message-threads-", "programmatic-tool-calling-", "skills-")
_CREDENTIALS = ("authorization", "x-api-key")


@dataclass(frozen=True)
class UpstreamCaller:
    """The client for which the upstream is asked."""

    headers: Mapping[str, str] = field(repr=False)
    query: str = ""


def upstream_headers(settings: GatewaySettings, client: Mapping[str, str]) -> dict[str, str]:
    """Headers for the upstream. Of the client's headers only credentials and ``anthropic-*`` are passed on."""
    headers = {name: value for name, value in client.items() if name.startswith("anthropic-")}
    headers.setdefault("anthropic-version", _DEFAULT_VERSION)
    betas = upstream_betas(headers.pop("anthropic-beta", ""))
    if betas:
        headers["anthropic-beta"] = ",".join(betas)
    if settings.upstream_key is not None:
        headers.update(_with_key(settings.upstream_key))
    elif not settings.keys:
        headers.update({name: client[name] for name in _CREDENTIALS if client.get(name)})
    for name, value in headers.items():
        if not value.isascii():
            raise invalid(f"the header {name} has characters that no header can have")
    return headers


def upstream_betas(header: str) -> list[str]:
    betas = [beta.strip() for beta in header.split(",")]
    return [beta for beta in dict.fromkeys(betas) if beta and not beta.startswith(_OWN_BETAS)]


def _with_key(key: str) -> dict[str, str]:
    """Put the key into the header that the upstream reads.

    Servers of open models read ``Authorization``. The API itself reads ``X-Api-Key``, and takes a bearer for a login
    token.
    """
    if key.startswith("sk-ant-oat"):
        return {"authorization": f"Bearer {key}"}
    if key.startswith("sk-ant-"):
        return {"x-api-key": key}
    return {"x-api-key": key, "authorization": f"Bearer {key}"}
