"""Through a proxy, plain and as a tunnel, and over TLS."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ramet import Unreachable
from ramet.client.operations import cells, files
from ramet.client.operations.cells import CellOrder
from ramet.client.operations.steps import Operation
from ramet.client.sources import pieces
from ramet.protocol.values.results import Result
from tests.http_client.conftest import Perform
from tests.http_client.servers import DONE, FORTY_TWO, Peer, Request, refusal, serving

WrapSocket = Callable[[socket.socket], socket.socket]


def cell() -> Operation[Result]:
    return cells.run("sbx_1", "1", "python", None, order=CellOrder())


@pytest.fixture(autouse=True)
def no_proxy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For ramet.example and 127.0.0.1, signed by itself; with its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ramet.example")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(
        [x509.DNSName("ramet.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def wrap(certificate: Path) -> WrapSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return lambda sock: context.wrap_socket(sock, server_side=True)


def test_a_request_through_a_proxy_names_the_server_and_the_user(
    perform: Perform, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Request] = []

    def proxy(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.answer(FORTY_TWO)

    with serving(proxy) as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@127.0.0.1:{server.port}")
        # Each test a name of its own: the way to a server is found once.
        url = f"http://ramet.example:{server.port}"
        for _ in range(2):
            assert perform(url, cell(), key="rmt_key").stdout == "42\n"
        assert server.connections == 1
    for request in seen:
        assert request.line == f"POST {url}/v1/call HTTP/1.1".encode()
        assert request.headers[b"host"] == f"ramet.example:{server.port}".encode()
        assert request.headers[b"proxy-authorization"] == b"Basic dXNlcjpzZWNyZXQ="
        assert request.headers[b"authorization"] == b"Bearer rmt_key"


def test_a_proxy_that_is_not_there_is_named_without_its_password(
    perform: Perform, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@127.0.0.1:{port}")
        with pytest.raises(Unreachable, match=f"through the proxy 127.0.0.1:{port}") as failed:
            perform(f"http://ramet.example:{port}", cell())
    assert "secret" not in str(failed.value)


def test_a_proxy_that_wants_a_password_is_told_apart(perform: Perform, monkeypatch: pytest.MonkeyPatch) -> None:
    def proxy(peer: Peer) -> None:
        while peer.read_head() is not None:
            peer.send(refusal(b"407 Proxy Authentication Required", b""))

    with serving(proxy) as server:
        monkeypatch.setenv("ALL_PROXY", server.url)
        with pytest.raises(Unreachable, match="407"):
            perform(f"https://ramet.example:{server.port}", cell())


def test_calls_over_tls(perform: Perform, wrap: WrapSocket, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    seen: list[Request] = []

    def serve(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.answer(FORTY_TWO if len(request.frames) == 1 else DONE)

    data = bytes(range(256)) * 20_000
    with serving(serve, wrap=wrap) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert perform(url, cell()).stdout == "42\n"
        perform(url, files.write("sbx_1", "/root/f", data), pieces(data))
        long = cells.run("sbx_1", "#" * 3_000_000, "python", None, order=CellOrder())
        assert perform(url, long).stdout == "42\n"
        assert server.connections == 1
    assert b"".join(frame.blob for frame in seen[1].frames) == data
    assert seen[2].frames[0].blob == b"#" * 3_000_000


def test_a_certificate_that_nobody_trusts_is_refused(perform: Perform, wrap: WrapSocket) -> None:
    with serving(lambda peer: peer.serve(FORTY_TWO), wrap=wrap) as server:
        with pytest.raises(Unreachable, match="certificate"):
            perform(f"https://127.0.0.1:{server.port}", cell())
        assert server.connections == 1


def test_a_certificate_of_another_name_is_refused(
    perform: Perform, wrap: WrapSocket, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(lambda peer: peer.serve(FORTY_TWO), wrap=wrap) as server:
        with pytest.raises(Unreachable, match="certificate"):
            perform(f"https://localhost:{server.port}", cell())


def test_a_server_that_does_not_speak_tls_is_unreachable(perform: Perform) -> None:
    def plain(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.wait_until_closed()

    with serving(plain) as server:
        with pytest.raises(Unreachable, match="TLS"):
            perform(f"https://127.0.0.1:{server.port}", cell())


def test_tls_goes_through_a_tunnel(
    perform: Perform, wrap: WrapSocket, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    lines: list[bytes] = []
    with serving(lambda peer: peer.serve(FORTY_TWO), wrap=wrap) as server:

        def proxy(peer: Peer) -> None:
            request = peer.read_head()
            assert request is not None
            lines.append(request.line)
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with socket.create_connection(("127.0.0.1", server.port)) as onward:
                back = threading.Thread(target=_copy, args=(onward, peer.sock))
                back.start()
                _copy(peer.sock, onward)
                back.join()

        with serving(proxy) as middle:
            monkeypatch.setenv("https_proxy", f"127.0.0.1:{middle.port}")
            url = f"https://ramet.example:{server.port}"
            for _ in range(2):
                assert perform(url, cell()).stdout == "42\n"
            assert (server.connections, middle.connections) == (1, 1)
            assert lines == [f"CONNECT ramet.example:{server.port} HTTP/1.1".encode()]


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
