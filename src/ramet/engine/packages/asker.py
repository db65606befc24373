"""Who asks for packages: all of a sandbox that decides what pip would install there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ramet.engine.network.variables import certificates, is_of_the_system
from ramet.engine.packages.wanting import Wanted
from ramet.protocol.network import Attempt, NetworkSpec
from ramet.protocol.specs import Limits, SandboxSpec, TemplateSpec

_FORMAT = 2  # of what is kept: another one is not found again
# Where packages come from. With any other setting of its owner's, a sandbox is left to pip.
_INDEX_SETTINGS = frozenset(("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"))
# Whom pip trusts. A file of the system's is the same where packages are installed.
_TRUST_SETTINGS = frozenset(("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"))
# Those that change nothing about what is installed. The guest has the same list, in pip_words.py.
_WITHOUT_EFFECT = frozenset(
    (
        "PIP_RETRIES",
        "PIP_NO_INPUT",
        "PIP_NO_COLOR",
        "PIP_PROGRESS_BAR",
        "PIP_NO_CACHE_DIR",
        "PIP_CACHE_DIR",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_TIMEOUT",
        "PIP_ROOT_USER_ACTION",
        "PIP_BREAK_SYSTEM_PACKAGES",
        "PIP_DISABLE_PIP_VERSION_CHECK",
    )
)
_KEPT_SECONDS = 24 * 3600
_KEPT_PINNED_SECONDS = 7 * 24 * 3600  # its dependencies need not be pinned


@dataclass(frozen=True, slots=True)
class Asker:
    """A sandbox as its owner made it. Nothing in here can be changed by the code that runs in it."""

    template: TemplateSpec
    limits: Limits
    owner: str
    network: NetworkSpec
    settings: tuple[tuple[str, str], ...]  # of pip, in the environment
    secrets: bool
    certificates: str | None = None  # the file that its network names, which its owner has not
    # What was tried on its behalf belongs in its log.
    on_attempts: Callable[[Iterable[Attempt]], None] = field(default=lambda attempts: None, compare=False)

    @classmethod
    def of(cls, spec: SandboxSpec, on_attempts: Callable[[Iterable[Attempt]], None] = lambda attempts: None) -> Asker:
        pip = (pair for pair in spec.environment if pair[0].startswith("PIP_") or pair[0] in _TRUST_SETTINGS)
        network = spec.network or NetworkSpec()
        return cls(
            template=spec.template,
            limits=spec.limits,
            owner=spec.owner,
            network=network,
            settings=tuple(sorted((name, value) for name, value in pip if name not in _WITHOUT_EFFECT)),
            secrets=any(secret.name.startswith("PIP_") for secret in spec.secrets),
            certificates=certificates(bool(spec.secrets or network.ca_pem), dict(spec.environment)),
            on_attempts=on_attempts,
        )

    def why_not(self, settings: Mapping[str, str]) -> str | None:
        """Why this is left to pip, if it is. The settings are those in the environment of whoever asks."""
        if self.secrets or any(name not in _INDEX_SETTINGS | _TRUST_SETTINGS for name, _ in self.settings):
            return "its owner's settings of pip say more than where packages come from"
        if any(name in _TRUST_SETTINGS and not is_of_the_system(value) for name, value in self.settings):
            return "its owner trusts certificates of its own"
        if self._of_pip(dict(self.settings)) != self._of_pip(settings):
            return "other settings of pip than its owner's"
        if self.network.total_bytes is not None or self.network.bytes_per_second is not None:
            return "what it may send and receive is limited"  # and would not be counted
        return None

    def indexes(self, default: str | None) -> list[str]:
        """Where pip would look, if it looks there at all where nobody says otherwise."""
        settings = dict(self.settings)
        first = settings.get("PIP_INDEX_URL") or default
        return [url for url in (first, *settings.get("PIP_EXTRA_INDEX_URL", "").split()) if url]

    def _of_pip(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Those that are somebody's choice, by name."""
        known = ("PIP_CERT", self.certificates)
        return {name: value for name, value in settings.items() if name[:4] == "PIP_" and (name, value) != known}

    def key(self, wanted: Wanted, base: Mapping[str, str], now: float) -> str:
        """Whoever has the same gets the same. Two owners never do: one must not learn what another has installed."""
        period = int(now // (_KEPT_PINNED_SECONDS if wanted.all_pinned else _KEPT_SECONDS))
        parts = {
            "format": _FORMAT,
            "python": [self.template.interpreter.executable, self.template.interpreter.version],
            "base": sorted(base.items()),
            "owner": self.owner,
            "settings": self.settings,
            "network": {
                "open": self.network.open,
                "allow": sorted(map(str, self.network.allow)),
                "deny": sorted(map(str, self.network.deny)),
                "addresses": sorted(self.network.addresses),
                "ca_pem": self.network.ca_pem,
            },
            "wanted": wanted.header(),
            "period": period,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
