"""The proxy's own answers: what was refused, why, and what the owner of the sandbox can do about it.

The reason is in the status line too: most clients show nothing else of an answer to CONNECT.
"""

from __future__ import annotations

from http import HTTPStatus

from ramet.network.connecting.targets import TargetRefused

_STATUS = {
    "rule": HTTPStatus.FORBIDDEN,
    "bytes": HTTPStatus.FORBIDDEN,
    "limit": HTTPStatus.TOO_MANY_REQUESTS,
    "unresolved": HTTPStatus.BAD_GATEWAY,
    "unreachable": HTTPStatus.BAD_GATEWAY,
}
_REASON_AT_MOST = 200


def refusal(refused: TargetRefused, host: str, port: int, method: bytes = b"CONNECT", keep: bool = False) -> bytes:
    """The answer to a request for which there is no connection."""
    where = _where(host, port)
    why = refused.reason if host in refused.reason else f"{where}: {refused.reason}"
    return _answer(_STATUS[refused.status], why, _hint(refused, where), method, keep)


def failure(status: HTTPStatus, host: str, port: int, why: str, method: bytes, keep: bool) -> bytes:
    """The answer to a request that a server has not answered."""
    return _answer(status, f"{_where(host, port)}: {why}", None, method, keep)


def malformed(why: str) -> bytes:
    """The answer to something that is not a request, or not one that is passed on. The connection ends after it."""
    return _answer(HTTPStatus.BAD_REQUEST, f"this request is not passed on: {why}", None, b"", False)


def _answer(status: HTTPStatus, why: str, hint: str | None, method: bytes, keep: bool) -> bytes:
    told = f"ramet network: {why}"
    body = (told + (f"\n\nhint: {hint}" if hint else "") + "\n").encode()
    lines = [
        b"HTTP/1.1 %d %b" % (status, _phrase(why)),
        b"Content-Type: text/plain; charset=utf-8",
        b"Content-Length: %d" % len(body),
        b"Cache-Control: no-store",
    ]
    if not keep:
        lines.append(b"Connection: close")
    return b"\r\n".join((*lines, b"", b"" if method == b"HEAD" else body))


def _where(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hint(refused: TargetRefused, where: str) -> str | None:
    if refused.hint is not None:
        return refused.hint
    if refused.status == "rule":
        return f'the owner of the sandbox can allow it: sandbox.network.allow("{where}")'
    if refused.status == "limit":
        return "the owner of the sandbox can give it more: Network(connections=...)"
    if refused.status == "bytes":
        return "the owner of the sandbox can give it more: Network(total_bytes=...)"
    if refused.status == "unresolved":
        return "the name is looked up where the engine runs, not in the sandbox; is it spelled right?"
    return None


def _phrase(text: str) -> bytes:
    shown = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:_REASON_AT_MOST])
    return shown.encode()
