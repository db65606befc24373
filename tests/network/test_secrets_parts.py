"""Secrets as bytes: where a placeholder is found, how the value is spelled there, and what becomes of it in answers."""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64encode
from urllib.parse import parse_qs, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ProtocolError
from ramet.network.http import decompression
from ramet.network.http.decompression import Unpacker
from ramet.network.http.heads import Malformed
from ramet.network.secrets.peer_secrets import HostSecrets, PeerSecret
from ramet.protocol.network.secret_places import SecretPlaces
from ramet.protocol.network.specs import read_rules

PLACEHOLDER = "ramet_secret_0123456789abcdef0123456789abcdef"
EVERYWHERE = SecretPlaces(headers=("X-Key",), query=("key",), path=True, body=True)
ODD = 'a "b"\\c&d=e/f?g+h%20é€'


def _secret(value: str = ODD, *hosts: str) -> PeerSecret:
    return PeerSecret(value, (PLACEHOLDER,), read_rules(hosts or ["api.example"]), EVERYWHERE)


def _secrets(value: str = ODD) -> HostSecrets:
    return HostSecrets((_secret(value),), 443, secure=True)


def _in_body(secrets: HostSecrets, kind: bytes, body: bytes) -> bytes:
    replacer = secrets.body_replacer(kind)
    return body if replacer is None else replacer.whole(body)


@pytest.mark.parametrize(
    ("host", "name", "port", "is_for"),
    [
        ("api.example", "api.example", 443, True),
        ("api.example", "api.example", 80, True),
        ("api.example", "api.example", 8080, False),
        ("api.example:8080", "api.example", 8080, True),
        ("api.example:8080", "api.example", 443, False),
        ("api.example", "evil.api.example", 443, False),
        ("api.example", "api.example.evil", 443, False),
        ("*.example", "api.example", 443, True),
        ("*.example", "example", 443, False),
    ],
)
def test_a_secret_is_for_the_hosts_and_ports_that_it_lists(host: str, name: str, port: int, is_for: bool) -> None:
    assert _secret("v", host).is_for(name, port) is is_for


def test_a_value_is_in_no_repr_and_no_error() -> None:
    secret = _secret("s3cr3t")
    assert "s3cr3t" not in repr(secret) + repr(_secrets("s3cr3t")) + repr((secret,))
    for value in ("s3cr3t\r\nX: y", "", 5, None, ["s3cr3t"]):
        with pytest.raises(ProtocolError) as raised:
            PeerSecret.read({"value": value, "placeholders": [PLACEHOLDER], "hosts": ["api.example"]})
        assert "s3cr3t" not in str(raised.value)


def test_a_target_gets_the_value_percent_encoded_in_path_and_query() -> None:
    target = _secrets().in_target(f"/v1/{PLACEHOLDER}/x?key={PLACEHOLDER}&a=b".encode()).decode()
    path, _, query = target.partition("?")
    assert unquote(path) == f"/v1/{ODD}/x"
    assert path.count("/") == 3
    assert parse_qs(query) == {"key": [ODD], "a": ["b"]}


@pytest.mark.parametrize("text", ["{}", "Bearer {}", "a={}; b={}", "{}{}"])
def test_a_header_gets_the_value_as_it_is(text: str) -> None:
    replaced = _secrets().in_header(b"authorization", text.replace("{}", PLACEHOLDER).encode())
    assert replaced.decode() == text.replace("{}", ODD)


@pytest.mark.parametrize("credentials", ["user:{}", "{}:", "{}:{}", "{}"])
@pytest.mark.parametrize("scheme", ["Basic ", "basic  ", "BASIC\t"])
def test_basic_credentials_are_taken_apart_and_put_together_again(credentials: str, scheme: str) -> None:
    encoded = b64encode(credentials.replace("{}", PLACEHOLDER).encode()).decode()
    for written in (encoded, encoded.rstrip("=")):
        replaced = _secrets().in_header(b"authorization", f"{scheme}{written}".encode()).decode()
        assert replaced == scheme + b64encode(credentials.replace("{}", ODD).encode()).decode()


@pytest.mark.parametrize("value", [b"Basic ", b"Basic ====", b"Basic YQ==", b"Basic a", b"Basic \xff", b"Digest abc"])
def test_other_headers_stay_as_they_are(value: bytes) -> None:
    assert _secrets().in_header(b"authorization", value) == value


@pytest.mark.parametrize(
    "kind", [b"application/json", b"application/json; charset=utf-8", b"application/problem+json", b"text/json",
             b"Application/JSON", b"application/x-ndjson"]
)  # fmt: skip
def test_a_body_of_json_is_json_with_the_value_in_it(kind: bytes) -> None:
    body = json.dumps({"key": f"Bearer {PLACEHOLDER}"}).encode()
    assert json.loads(_in_body(_secrets(), kind, body)) == {"key": f"Bearer {ODD}"}


def test_a_form_is_a_form_with_the_value_in_it() -> None:
    form = _in_body(_secrets(), b"application/x-www-form-urlencoded;charset=utf-8", f"a=b&key={PLACEHOLDER}".encode())
    assert parse_qs(form.decode()) == {"a": ["b"], "key": [ODD]}


@pytest.mark.parametrize("kind", [b"", b"text/plain", b"multipart/form-data; boundary=x", b"application/octet-stream"])
def test_any_other_body_gets_the_value_as_it_is(kind: bytes) -> None:
    assert _in_body(_secrets(), kind, f"<{PLACEHOLDER}>".encode()).decode() == f"<{ODD}>"


def test_the_placeholder_of_another_sandbox_is_text_as_any_other() -> None:
    other = PLACEHOLDER.replace("0", "f").encode()
    secrets = _secrets()
    assert secrets.in_target(b"/?" + other) == b"/?" + other
    assert secrets.in_header(b"x-key", other) == other
    assert _in_body(secrets, b"", other) == other


def test_every_placeholder_of_a_secret_is_replaced() -> None:
    """A fork's child that inherits a secret has a placeholder of its own, and its parent's in its memory."""
    secret = PeerSecret("value", (PLACEHOLDER, "ramet_secret_other"), read_rules(["api.example"]), EVERYWHERE)
    secrets = HostSecrets((secret,), 443, secure=True)
    assert secrets.in_header(b"x-key", f"{PLACEHOLDER} ramet_secret_other".encode()) == b"value value"


def test_values_are_not_put_in_on_the_port_of_tls_without_tls_but_masked() -> None:
    secrets = HostSecrets((_secret("s3cr3t"),), 443, secure=False)
    assert secrets.in_header(b"x-key", PLACEHOLDER.encode()) == PLACEHOLDER.encode()
    assert secrets.in_target(PLACEHOLDER.encode()) == PLACEHOLDER.encode()
    assert _in_body(secrets, b"", PLACEHOLDER.encode()) == PLACEHOLDER.encode()
    assert secrets.masked(b"s3cr3t") == b"******"


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=6, max_size=40), st.binary(max_size=20))
def test_an_echo_is_masked_in_every_spelling_and_keeps_its_length(value: str, around: bytes) -> None:
    secrets = _secrets(value)
    plain = value.encode()
    sent = [
        secrets.in_target(PLACEHOLDER.encode()),
        secrets.in_header(b"x-key", PLACEHOLDER.encode()),
        _in_body(secrets, b"application/json", PLACEHOLDER.encode()),
        plain.hex().encode(),
    ]
    for form in sent:
        for masked in (secrets.masked(around + form + around), secrets.masker().whole(around + form + around)):
            assert form not in masked
            assert len(masked) == len(around) * 2 + len(form)


@pytest.mark.parametrize("kind", [b"gzip", b"x-gzip", b"deflate"])
@given(body=st.binary(max_size=2000), size=st.integers(1, 50))
def test_a_compressed_body_is_unpacked_however_it_is_cut(kind: bytes, body: bytes, size: int) -> None:
    packed = zlib.compress(body) if kind == b"deflate" else gzip.compress(body)
    unpacker = Unpacker(kind)
    found = b"".join(b"".join(unpacker.feed(packed[at : at + size])) for at in range(0, len(packed), size))
    unpacker.finish()
    assert found == body


def test_deflate_without_its_header_is_unpacked_as_well() -> None:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(b"squeezed") + packer.flush()
    unpacker = Unpacker(b"deflate")
    assert b"".join(unpacker.feed(packed)) == b"squeezed"
    unpacker.finish()


def test_two_files_of_gzip_behind_each_other_are_one_body() -> None:
    unpacker = Unpacker(b"gzip")
    assert b"".join(unpacker.feed(gzip.compress(b"a") + gzip.compress(b"b"))) == b"ab"
    unpacker.finish()


def test_what_is_not_compressed_or_cut_short_is_refused() -> None:
    with pytest.raises(Malformed, match="not compressed"):
        list(Unpacker(b"gzip").feed(b"plain text"))
    for packed in (gzip.compress(b"a")[:-3], gzip.compress(b"x" * 100)[:12]):
        unpacker = Unpacker(b"gzip")
        list(unpacker.feed(packed))
        with pytest.raises(Malformed, match="cut short"):
            unpacker.finish()
    Unpacker(b"gzip").finish()  # nothing at all is an empty body


def test_what_grows_out_of_all_proportion_is_refused_and_comes_in_bounded_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decompression, "_FIRST_BYTES", 1 << 20)
    given: list[int] = []
    pieces = map(len, Unpacker(b"gzip").feed(gzip.compress(bytes(50 << 20))))
    with pytest.raises(Malformed, match="expands too much"):
        given.extend(pieces)
    assert 0 < sum(given) < 8 << 20
    assert max(given) <= 256 * 1024


_WRITTEN = "Kx9/Vb2+Qm7=Zt4-w_1"
_BYTES = _WRITTEN.encode()


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (_WRITTEN, True),
        ("Kx9%2FVb2%2bQm7%3DZt4-w_1", True),
        ("Kx9%252FVb2%252BQm7%253DZt4-w_1", True),
        (r"Kx9\/Vb2\u002bQm7=Zt4-w_1", True),
        ("Kx9&#x2F;Vb2&#43;Qm7&#61;Zt4-w_1", True),
        (_BYTES.hex(), True),
        (_BYTES.hex().upper(), True),
        (b64encode(_BYTES).decode(), True),
        (b64encode(b"a" + _BYTES + b"b").decode(), True),
        # Beyond what is promised.
        ("".join(f"%{byte:02x}" for byte in _BYTES), False),
        ("".join(rf"\u{byte:04x}" for byte in _BYTES), False),
        ("".join(f"&#{byte};" for byte in _BYTES), False),
        (_BYTES.hex(" "), False),
        (_BYTES.hex(":"), False),
        (b64encode(b64encode(_BYTES)).decode(), False),
        (" ".join(_WRITTEN), False),
        (_WRITTEN[::-1], False),
    ],
)
def test_the_spellings_that_the_documents_list_are_masked_and_no_others(written: str, found: bool) -> None:
    masked = _secrets(_WRITTEN).masked(f"<{written}>".encode()).decode()
    assert ("*" * 12 in masked) is found
    assert found or masked == f"<{written}>"
