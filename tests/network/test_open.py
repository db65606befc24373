"""network="open" reaches what is public and nothing else, on an internet of two machines made for these tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.network.small_internet import HERE, METADATA, PRIVATE, PUBLIC, SHARED, WIRE

_ROOT = Path(__file__).resolve().parents[2]
_PUBLIC = ["public.example", PUBLIC, "both.example", f"[::ffff:{PUBLIC}]"]
# What each refusal says of the address.
_REFUSED = {
    "private.example": f"private.example resolves to {PRIVATE}, which is a private or reserved address",
    "metadata.example": f"metadata.example resolves to {METADATA}, which is a link-local address",
    "here.example": f"here.example resolves to {HERE}, which is an address of the host itself",
    "loopback.example": "loopback.example resolves to 127.0.0.1, which is",
    PRIVATE: "a private or reserved address",
    METADATA: "a link-local address",
    WIRE: "a metadata address",
    SHARED: "a private or reserved address",
    HERE: "an address of the host itself",
    "127.0.0.1": "127.0.0.1",
    "0.0.0.0": "a loopback address",
    "[::1]": "::1",
    f"[::ffff:{PRIVATE}]": "a private or reserved address",
    f"[64:ff9b::{PRIVATE}]": "stands for one of IPv4",
    "[2002:a14:1e28::1]": "stands for one of IPv4",
}


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the program in its own internet has seen."""
    missing = [name for name in ("ip", "unshare", "nsenter", "curl") if shutil.which(name) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"this machine has no {', '.join(missing)}: tools/need test")
    own = ["unshare", "-nm"] if os.geteuid() == 0 else ["unshare", "-Urnm"]
    command = [*own, "--kill-child", sys.executable, "-m", "tests.network.small_internet"]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("host", _PUBLIC)
def test_what_is_public_is_reached(seen: dict[str, Any], host: str) -> None:
    assert seen["fetched"][host] == [200, "hello\n"]


@pytest.mark.parametrize("host", _REFUSED)
def test_what_is_not_public_is_refused_with_the_reason(seen: dict[str, Any], host: str) -> None:
    status, said = seen["fetched"][host]
    assert status == 403
    assert _REFUSED[host] in said


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "nowhere.example"])
def test_what_is_no_name_and_no_address_leads_nowhere(seen: dict[str, Any], host: str) -> None:
    assert seen["fetched"][host][0] in (400, 403, 502)


def test_nothing_but_the_public_address_was_connected_to(seen: dict[str, Any]) -> None:
    """Those of the list that names the private address included, which came last: twice to that."""
    before_the_list = seen["arrived"][:-3]
    assert set(before_the_list) == {PUBLIC}
    assert seen["arrived"][-3:] == [PRIVATE, PRIVATE, PUBLIC]


def test_a_name_with_a_private_and_a_public_address_is_reached_by_the_public_one(seen: dict[str, Any]) -> None:
    (entry,) = [one for one in seen["log"] if one[0] == "both.example"]
    assert entry[1:4] == [True, "open", PUBLIC]


def test_raw_connections_are_asked_the_same(seen: dict[str, Any]) -> None:
    raw = seen["raw"]
    assert (raw[PUBLIC], raw["public.example"]) == ("HTTP/1.1 200 OK", "HTTP/1.1 200 OK")
    for host in (PRIVATE, METADATA, HERE):
        assert raw[host] in ("ConnectionResetError", "ConnectionRefusedError")


def test_what_is_denied_is_not_open(seen: dict[str, Any]) -> None:
    status, said = seen["denied"]
    assert status == 403
    assert "public.example:80 is denied by the rule 'public.example'" in said


def test_a_private_address_is_reached_where_a_rule_lists_it(seen: dict[str, Any]) -> None:
    listed = seen["listed"]
    assert [listed[host][0] for host in (PRIVATE, "private.example", "public.example")] == [200, 200, 200]
    assert [listed[host][0] for host in (PUBLIC, "both.example")] == [403, 403]
