"""The authority of an engine: what it signs, who believes it, and that it survives a restart of the proxy."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509

from ramet.errors import ProtocolError
from ramet.network.secrets import certificates
from ramet.network.secrets.certificates import Authority, bundle, system_pem, upstream_context
from tests.network.servers import WAIT_SECONDS


@pytest.fixture(scope="module")
def own() -> Authority:
    return Authority.make()


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> list[str]:
    """The names in the server's certificate, as the client sees it."""
    here, there = socket.socketpair()
    here.settimeout(WAIT_SECONDS)
    there.settimeout(WAIT_SECONDS)

    def serve() -> None:
        try:
            server.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=name) as seen:
            certificate: Any = seen.getpeercert()
            return [value for _, value in certificate["subjectAltName"]]
    finally:
        here.close()
        thread.join(WAIT_SECONDS)


def _trusting(*pem: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata="\n".join(pem))
    # What Python 3.13 asks for by itself.
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


@pytest.mark.parametrize("name", ["api.example", "a.b.c.example", "xn--bcher-kva.example", "with_line.example"])
def test_a_leaf_is_believed_by_who_trusts_the_authority_for_its_name(own: Authority, name: str) -> None:
    assert _shake_hands(own.context_for(name), _trusting(own.pem), name) == [name]


def test_a_name_too_long_for_a_subject_is_signed_for_all_the_same(own: Authority) -> None:
    name = ".".join(["a" * 60, "b" * 60, "c" * 60, "example"])
    assert _shake_hands(own.context_for(name), _trusting(own.pem), name) == [name]


def test_http_1_is_agreed_on_whatever_else_a_client_offers(own: Authority) -> None:
    here, there = socket.socketpair()
    result: list[str | None] = []

    def serve() -> None:
        with own.context_for("api.example").wrap_socket(there, server_side=True) as served:
            result.append(served.selected_alpn_protocol())

    thread = threading.Thread(target=serve)
    thread.start()
    with _trusting(own.pem).wrap_socket(here, server_hostname="api.example"):
        thread.join(WAIT_SECONDS)
    assert result == ["http/1.1"]


def test_a_leaf_is_for_its_name_alone_and_for_who_trusts_the_authority(own: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _shake_hands(own.context_for("api.example"), _trusting(own.pem), "other.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        _shake_hands(own.context_for("api.example"), _trusting(Authority.make().pem), "api.example")


def test_the_same_authority_is_read_from_what_it_writes(own: Authority) -> None:
    read = Authority.read(own.header())
    assert read.pem == own.pem
    _shake_hands(read.context_for("api.example"), _trusting(own.pem), "api.example")


def test_an_authority_that_lacks_its_key_is_refused(own: Authority) -> None:
    with pytest.raises(ProtocolError):
        Authority.read({"certificate": own.pem})


def test_a_context_is_made_once_for_each_name(own: Authority) -> None:
    assert own.context_for("once.example") is own.context_for("once.example")


def test_names_do_not_pile_up_without_end(own: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_CONTEXTS_AT_MOST", 3)
    for number in range(10):
        own.context_for(f"n{number}.example")
    assert len(own._contexts) <= 3


def test_certificates_begin_before_they_are_made_and_leaves_end_soon(own: Authority) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = x509.load_pem_x509_certificate(own.pem.encode())
    leaf = x509.load_pem_x509_certificate(own._leaf("api.example").encode())
    for certificate in (authority, leaf):
        assert certificate.not_valid_before_utc < now - datetime.timedelta(days=1)
    assert leaf.not_valid_after_utc < now + datetime.timedelta(days=40)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)


def test_the_key_is_in_no_repr(own: Authority) -> None:
    assert "KEY" not in repr(own) + str(own)


def test_a_bundle_has_what_the_host_trusts_and_the_engines_own(own: Authority) -> None:
    text = bundle(own.pem)
    assert text.endswith(own.pem)
    assert text.count("BEGIN CERTIFICATE") == system_pem().count("BEGIN CERTIFICATE") + 1
    ssl.create_default_context(cadata=text)


@pytest.fixture
def read_anew() -> Iterator[None]:
    """What the host trusts is remembered; not across these tests."""
    system_pem.cache_clear()
    yield
    system_pem.cache_clear()


@pytest.mark.usefixtures("read_anew")
def test_the_owners_variables_say_what_the_host_trusts(
    authority_pem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trusted.pem"
    file.write_text(f"# a comment ä\n{authority_pem}", encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert system_pem().strip() == authority_pem.strip()


@pytest.mark.usefixtures("read_anew")
def test_a_folder_of_certificates_is_read_each_once(
    authority_pem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one.pem", "two.pem"):
        (tmp_path / name).write_text(authority_pem)
    (tmp_path / "readme").write_text("nothing of interest\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert system_pem().strip() == authority_pem.strip()


def test_the_proxy_trusts_whom_the_owner_adds(authority: trustme.CA, authority_pem: str) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.example").configure_cert(server)
    _shake_hands(server, upstream_context(authority_pem), "api.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(server, upstream_context(None), "api.example")
