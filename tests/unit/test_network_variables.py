"""What programs in a sandbox with a network find in their environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.engine.network import variables as known
from ramet.engine.network.variables import CERTIFICATES, is_of_the_system, variables

_TRUST = {
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
}


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file of whom this host trusts."""
    file = tmp_path / "certificates"
    file.touch()
    monkeypatch.setattr(known, "_SYSTEM_CERTIFICATES", (str(tmp_path / "missing"), str(file)))
    known._system_certificates.cache_clear()
    yield str(file)
    known._system_certificates.cache_clear()


def _trusted(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name in _TRUST}


def test_programs_are_told_whom_the_host_trusts(system: str) -> None:
    assert _trusted(variables()) == dict.fromkeys(_TRUST, system)


def test_with_secrets_or_an_authority_of_the_owners_there_is_a_file_of_its_own(system: str) -> None:
    assert _trusted(variables([("KEY", "placeholder")])) == dict.fromkeys(_TRUST, CERTIFICATES)
    assert _trusted(variables(own_certificates=True)) == dict.fromkeys(_TRUST, CERTIFICATES)
    assert variables([("KEY", "placeholder")])["KEY"] == "placeholder"


@pytest.mark.parametrize("name", [*sorted(_TRUST), "SSL_CERT_DIR"])
def test_an_owner_who_says_whom_to_trust_is_left_alone(system: str, name: str) -> None:
    assert _trusted(variables(own={name})) == {}
    assert _trusted(variables(own_certificates=True, own={name})) == dict.fromkeys(_TRUST - {name}, CERTIFICATES)


def test_a_host_without_such_a_file_names_none(system: str) -> None:
    Path(system).unlink()
    assert _trusted(variables()) == {}


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/etc/ssl/certs/ca-certificates.crt", True),
        ("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", True),
        ("/etc/ssl/certs/../../passwd", False),
        ("/etc/ssl/private/key.pem", False),
        ("etc/ssl/certs/a.pem", False),
        (CERTIFICATES, False),
    ],
)
def test_only_what_every_pod_has_is_of_the_system(path: str, shown: bool) -> None:
    assert is_of_the_system(path) is shown
