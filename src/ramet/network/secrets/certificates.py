"""Certificates: an engine's own authority, trusted in its sandboxes only, and the authorities that the proxy trusts.

The engine makes its authority when a sandbox first gets a secret, and sends it to the proxy, also to a restarted one:
what sandboxes have loaded of it stays valid.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ramet.protocol import fields

# An engine may run for long, and the clock of a cloned machine may be behind.
_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 30
_BACKDATED = timedelta(days=2)
_CONTEXTS_AT_MOST = 1000
_COMMON_NAME_AT_MOST = 64  # RFC 5280, ub-common-name


class Authority:
    """Signs certificates for host names.

    All of them share one key, which exists only in the proxy, like the authority's own.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self._contexts: dict[str, tuple[ssl.SSLContext, datetime]] = {}

    def __repr__(self) -> str:
        return f"<Authority {self._certificate.serial_number:x}, {len(self._contexts)} names>"

    @classmethod
    def make(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        number = x509.random_serial_number()
        # The number distinguishes the authorities of two engines for people who read certificates.
        name = _named(f"Ramet sandbox network {number % 2**32:08x}")
        builder = (
            _builder(name, name, key.public_key(), number, _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @cached_property
    def pem(self) -> str:
        """The certificate, for those who are to trust it."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def header(self) -> dict[str, object]:
        """Certificate and private key, for the proxy."""
        return {"certificate": self.pem, "key": _key_pem(self._key)}

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Authority:
        key = serialization.load_pem_private_key(fields.text(header, "key").encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, x509.load_pem_x509_certificate(fields.text(header, "certificate").encode()))

    def context_for(self, name: str) -> ssl.SSLContext:
        """The server side of TLS for a host name (in the form of ``host_name``)."""
        known = self._contexts.get(name)
        if known is not None and known[1] > datetime.now(UTC):
            return known[0]
        if len(self._contexts) >= _CONTEXTS_AT_MOST:
            self._contexts.clear()  # names come from rules with '*'; making a context again is quick
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        _load(context, self._leaf(name) + self._leaf_key_pem)
        self._contexts[name] = context, datetime.now(UTC) + timedelta(days=_LEAF_DAYS) / 2
        return context

    @cached_property
    def _leaf_key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    @cached_property
    def _leaf_key_pem(self) -> str:
        return _key_pem(self._leaf_key)

    def _leaf(self, name: str) -> str:
        public = self._leaf_key.public_key()
        subject = _named(name) if len(name) <= _COMMON_NAME_AT_MOST else x509.Name([])
        issuer_key = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(subject, self._certificate.subject, public, x509.random_serial_number(), _LEAF_DAYS)
            # RFC 5280 requires the names to be critical if there is no subject.
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=not subject.rdns)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def bundle(*own: str) -> str:
    """All certificates that a sandbox trusts: the host's authorities, and these."""
    return "\n".join(text.strip() for text in (system_pem(), *own) if text.strip()) + "\n"


@lru_cache(maxsize=1)
def system_pem() -> str:
    """The certificates that this host trusts. Empty: there are none, and no server on the internet can be verified."""
    paths = ssl.get_default_verify_paths()  # respects SSL_CERT_FILE and SSL_CERT_DIR, which the owner sets
    if paths.cafile is not None:
        return _certificates(Path(paths.cafile))
    if paths.capath is not None:
        # Hashed names are links to other files: keep each text once.
        texts = {_certificates(path) for path in sorted(Path(paths.capath).iterdir()) if path.is_file()}
        if found := "\n".join(sorted(texts)).strip():
            return found
    try:
        import certifi  # often installed with other packages
    except ImportError:
        return ""
    return _certificates(Path(certifi.where()))


def upstream_context(more_pem: str | None = None) -> ssl.SSLContext:
    """The client side of TLS: trusts the host's authorities and those of the sandbox's owner.

    Takes tens of milliseconds, so do not call it in an event loop.
    """
    context = ssl.create_default_context(cadata=bundle(more_pem or ""))
    context.set_alpn_protocols(["http/1.1"])
    return context


def _certificates(path: Path) -> str:
    """The certificates in a file, without comments, which not every reader accepts."""
    kept: list[str] = []
    inside = False
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        inside = inside or line.startswith("-----BEGIN CERTIFICATE-----")
        if inside:
            kept.append(line)
        inside = inside and not line.startswith("-----END CERTIFICATE-----")
    return "\n".join(kept)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, number: int, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(number)
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _load(context: ssl.SSLContext, pem: str) -> None:
    # The ssl module loads certificates from files only. The proxy may write no files, but a memfd has a path for the
    # process that holds its descriptor.
    memory = os.memfd_create("certificate")
    try:
        os.write(memory, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
