"""Programs that people use to fetch things, as cells: each prints what it got, or fails with what it has to say.

None of them is told of a proxy: what they know, they have from the variables of the sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass

from ramet import Language, Result, Sandbox

CELL_SECONDS = 60
# Where the tests put the certificate of their authority in a sandbox, and the variables by which programs find it.
AUTHORITY_FILE = "/tmp/authority.pem"
TRUST = dict.fromkeys(
    ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT"), AUTHORITY_FILE
)


@dataclass(frozen=True)
class Client:
    """``code`` has URL where the address goes, and HEADER where that of a secret's header goes."""

    name: str
    language: Language
    code: str
    # What it says when HTTP is refused, and when the tunnel for HTTPS is: a word of it at least tells why.
    says: str
    says_of_tunnels: str
    knows_proxies: bool = True

    def fetch(self, sandbox: Sandbox, url: str) -> Result:
        return sandbox.run_code(self.code.replace("URL", url), language=self.language, timeout=CELL_SECONDS)


NO_RULE = "other.example:{port} is in no rule of this sandbox"
NO_NAME = "other.example"

CLIENTS = [
    Client("curl", "bash", "curl -sS --fail-with-body -H \"X-Key: ${KEY:-none}\" 'URL'", NO_RULE, "403"),
    Client(
        "urllib",
        "python",
        "import os, urllib.request\n"
        "asked = urllib.request.Request('URL', headers={'X-Key': os.environ.get('KEY', 'none')})\n"
        "print(urllib.request.urlopen(asked, timeout=30).read().decode())",
        NO_RULE,
        NO_RULE,
    ),
    Client(
        "requests",
        "python",
        "import os, requests\n"
        "answer = requests.get('URL', headers={'X-Key': os.environ.get('KEY', 'none')}, timeout=30)\n"
        "answer.raise_for_status()\n"
        "print(answer.text)",
        NO_RULE,
        NO_RULE,
    ),
    Client(
        "httpx",
        "python",
        "import os, httpx\n"
        "answer = httpx.get('URL', headers={'X-Key': os.environ.get('KEY', 'none')}, timeout=30)\n"
        "answer.raise_for_status()\n"
        "print(answer.text)",
        NO_RULE,
        NO_RULE,
    ),
    Client(
        "aiohttp with trust_env",
        "python",
        "import os, aiohttp\n"
        "async with aiohttp.ClientSession(trust_env=True, raise_for_status=True) as session:\n"
        "    async with session.get('URL', headers={'X-Key': os.environ.get('KEY', 'none')}) as answer:\n"
        "        print(await answer.text())",
        NO_RULE,
        NO_RULE,
    ),
    Client(
        "aiohttp",
        "python",
        "import os, aiohttp\n"
        "async with aiohttp.ClientSession(raise_for_status=True) as session:\n"
        "    async with session.get('URL', headers={'X-Key': os.environ.get('KEY', 'none')}) as answer:\n"
        "        print(await answer.text())",
        NO_NAME,
        NO_NAME,
        knows_proxies=False,
    ),
    Client(
        "pandas.read_csv",
        "python",
        "import os, pandas\n"
        "print(pandas.read_csv('URL', storage_options={'X-Key': os.environ.get('KEY', 'none')}).to_csv(index=False))",
        NO_RULE,
        NO_RULE,
    ),
]
