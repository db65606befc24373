"""What a sandbox may ask the engine to install, and who gets the same tree."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ramet.engine.packages.requester import Requester
from ramet.engine.packages.requirements import NotPlain, Requirements, read_request, requirement
from ramet.protocol.network.rules import parse_rule
from ramet.protocol.network.specs import NetworkSpec, SecretSpec
from ramet.protocol.values.specs import Interpreter, Limits, SandboxSpec, TemplateSpec

DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("pandas", "pandas"),
        ("Some_Name.x", "some-name-x"),
        (" thing == 1.2 ", "thing==1.2"),
        ("thing>=1,<2", "thing<2,>=1"),
        ("thing[b, a]~=1.0", "thing[a,b]~=1.0"),
        ("thing==1.*", "thing==1.*"),
        ("thing ; python_version < '3.13'", "thing ; python_version < '3.13'"),
        ("thing===1!2.0+local.1", "thing===1!2.0+local.1"),
    ],
)
def test_a_plain_requirement_is_written_in_one_way(text: str, written: str) -> None:
    assert requirement(text) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-e .",
        "--index-url=http://evil.example/simple",
        "-rfile",
        "./thing",
        "/etc/passwd",
        "thing @ http://evil.example/thing.whl",
        "http://evil.example/thing.whl",
        "git+http://evil.example/thing",
        "file:thing",
        "thing.whl",
        "thing-1.0.tar.gz",
        "thing\n--index-url=http://evil.example",
        "thing --hash=sha256:00",
        "thing==1.0 --global-option=x",
        "thing; os_name == 'a' @ http://evil.example",
        "thing==$(id)",
        "thing\\",
        "thïng",
        "thing\0",
        "x" * 301,
        ".",
        "..",
        "thing[",
        "thing>=",
        7,
        None,
        ["thing"],
        {"a": 1},
    ],
)
def test_what_pip_could_take_for_more_than_a_name_is_left_to_the_sandbox(text: object) -> None:
    with pytest.raises(NotPlain):
        requirement(text)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 60_000,
        b'{"requirements": []}',
        b'{"requirements": "thing"}',
        b'{"requirements": ["thing"], "upgrade": 1}',
        b'{"requirements": ["thing"], "settings": []}',
        b'{"requirements": ["thing"], "settings": {"PIP_PRE": 1}}',
        json.dumps({"requirements": ["thing"] * 201}).encode(),
        json.dumps({"requirements": ["thing"], "settings": {str(n): "" for n in range(51)}}).encode(),
    ],
)
def test_an_odd_request_is_refused(line: bytes) -> None:
    with pytest.raises(NotPlain):
        read_request(line)


def test_a_request_is_the_same_in_any_order() -> None:
    one, _ = read_request(b'{"requirements": ["b", "A_a>=1", "b"]}')
    other, settings = read_request(b'{"requirements": ["a-a >= 1", "B"], "settings": {"PIP_PRE": "1"}}')
    assert one == other == Requirements(("a-a>=1", "b"))
    assert settings == {"PIP_PRE": "1"}


@pytest.fixture
def requester() -> Requester:
    interpreter = Interpreter("/usr/bin/python3", "3.12.1", (), (), None)
    return Requester.of(
        SandboxSpec(
            TemplateSpec("python", interpreter, (), True),
            Limits(1 << 30, 100, 1.0, 1 << 30),
            environment=(("PIP_INDEX_URL", "http://index.example/simple"), ("PIP_RETRIES", "3"), ("OTHER", "x")),
            network=NetworkSpec(allow=(parse_rule("index.example"),)),
        )
    )


WANTED = Requirements(("thing",))
BASE = {"pip": "1"}


def test_the_same_wish_of_the_same_owner_has_the_same_key(requester: Requester) -> None:
    assert requester.key(WANTED, BASE, 0.0) == replace(requester).key(WANTED, dict(BASE), DAY - 1)
    assert len(requester.key(WANTED, BASE, 0.0)) == 64


def test_nobody_gets_a_tree_that_was_made_from_something_else(requester: Requester) -> None:
    others = [
        replace(requester, owner="another"),
        replace(requester, settings=(("PIP_INDEX_URL", "http://other.example/simple"),)),
        replace(requester, network=NetworkSpec(open=True)),
        replace(requester, network=replace(requester.network, addresses=(("index.example", "127.0.0.1"),))),
        replace(requester, network=replace(requester.network, deny=(parse_rule("files.example"),))),
        replace(
            requester,
            template=replace(requester.template, interpreter=replace(requester.template.interpreter, version="3.13.0")),
        ),
    ]
    keys = {other.key(WANTED, BASE, 0.0) for other in others}
    keys |= {requester.key(replace(WANTED, **{name: True}), BASE, 0.0) for name in ("upgrade", "pre", "no_deps")}  # type: ignore[arg-type]
    keys |= {
        requester.key(WANTED, {"pip": "2"}, 0.0),
        requester.key(WANTED, BASE, DAY),
        requester.key(WANTED, BASE, 0.0),
    }
    assert len(keys) == len(others) + 6


def test_what_is_pinned_is_kept_for_longer(requester: Requester) -> None:
    pinned = Requirements(("other[x]==2.0", "thing==1.0"))
    assert requester.key(pinned, BASE, 0.0) == requester.key(pinned, BASE, 2 * DAY)
    for loose in ("thing==1.*", "thing>=1", "thing ; python_version=='3'", "thing!=2,==1"):
        assert not Requirements((loose,)).all_pinned


def test_only_who_sees_the_owners_own_index_is_served(requester: Requester) -> None:
    own = {"PIP_INDEX_URL": "http://index.example/simple"}
    assert requester.why_not(own) is None
    assert requester.why_not({}) == "other settings of pip than its owner's"
    assert requester.why_not({**own, "PIP_EXTRA_INDEX_URL": "http://evil.example"}) is not None
    assert replace(requester, settings=(("PIP_CONSTRAINT", "/c"),)).why_not({"PIP_CONSTRAINT": "/c"}) is not None
    assert replace(requester, network=replace(requester.network, total_bytes=10)).why_not(own) is not None


@pytest.mark.parametrize("name", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_owner_who_trusts_what_the_system_trusts_is_served(requester: Requester, name: str) -> None:
    def made(path: str) -> tuple[Requester, dict[str, str]]:
        environment = ((name, path),)
        spec = SandboxSpec(requester.template, requester.limits, environment=environment, network=requester.network)
        return Requester.of(spec), {name: path} if name == "PIP_CERT" else {}

    system, seen = made("/etc/ssl/certs/ca-certificates.crt")
    assert system.why_not(seen) is None
    other, _ = made("/etc/ssl/certs/other.pem")
    assert other.key(WANTED, BASE, 0.0) != system.key(WANTED, BASE, 0.0)
    for path in ("/mine/ca.pem", "/etc/ssl/certs/../../../mine.pem", "ca.pem"):
        own, seen = made(path)
        assert own.why_not(seen) == "its owner trusts certificates of its own"


def test_the_certificates_that_the_network_itself_names_are_no_setting_of_its_owner(requester: Requester) -> None:
    own = {"PIP_INDEX_URL": "http://index.example/simple"}
    trusting = replace(requester, certificates="/run/ramet/certificates.pem")
    assert trusting.why_not({**own, "PIP_CERT": "/run/ramet/certificates.pem"}) is None
    assert trusting.why_not({**own, "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"}) is not None
    assert trusting.why_not(own) is None
    told = replace(requester, network=replace(requester.network, ca_pem="-----BEGIN CERTIFICATE-----"))
    assert told.key(WANTED, BASE, 0.0) != requester.key(WANTED, BASE, 0.0)


def test_a_sandbox_whose_index_is_a_secret_is_left_to_pip(requester: Requester) -> None:
    spec = SandboxSpec(
        requester.template,
        requester.limits,
        network=requester.network,
        secrets=(SecretSpec("PIP_INDEX_URL", "http://user:word@index.example", (parse_rule("index.example"),)),),
    )
    assert Requester.of(spec).why_not({}) is not None


@pytest.mark.parametrize(
    "text", ["a" + " " * 298 + "!", "a" * 99 + "\t" * 200 + "!", "a [" + " " * 290 + "b", "a ==1" + " " * 290 + "!"]
)
def test_blanks_are_read_in_one_way_only(text: str) -> None:
    """Of one that could be split in many ways, the engine would read for half a second, while all others wait."""
    for _ in range(200):
        with pytest.raises(NotPlain):
            requirement(text)
