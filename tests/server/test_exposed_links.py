"""Where headers of servers in sandboxes lead a client. Every way to the API beside them ends below the prefix, or
nowhere."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.doors.http.exposed.links import ExposedPlace, moved, moved_header

PREFIX = b"/v1/exposed/0123456789abcdefghijABCDEFGHIJ-_"
PLACE = ExposedPlace(8000, PREFIX, b"/app/page", b"sandboxes.example:7070")
PLAIN_PORT = ExposedPlace(8000, PREFIX, b"/", b"sandboxes.example")
LOOPBACK = ExposedPlace(8000, PREFIX, b"/", b"localhost:7070")


@pytest.mark.parametrize(
    ("reference", "inside"),
    [
        ("/", "/"),
        ("/login?to=/a#b", "/login?to=/a#b"),
        ("next", "/app/next"),
        ("", "/app/page"),
        ("?x=1", "/app/page?x=1"),
        ("#part", "/app/page#part"),
        (".", "/app/"),
        ("..", "/"),
        ("../x", "/x"),
        ("../../../v1/sandboxes", "/v1/sandboxes"),
        ("/../../../v1/sandboxes", "/v1/sandboxes"),
        ("..//..//../v1/sandboxes/", "/v1/sandboxes/"),
        ("%2e%2e/%2E%2E/.%2e/v1", "/v1"),
        ("/a/%2e/b/.", "/a/b/"),
        ("..%2f..%2fv1", "/app/..%2f..%2fv1"),
        ("..;/..;/v1", "/app/..;/..;/v1"),
        ("/v1/exposed/another", "/v1/exposed/another"),
        ("/ä ü", "/%C3%A4%20%C3%BC"),
        ("/?next=http://evil.example\\x", "/?next=http://evil.example\\x"),
        ("http://localhost:8000/a/../b", "/b"),
        ("http://127.0.0.1:8000", "/"),
        ("http://[::1]:8000/x", "/x"),
        ("http://0.0.0.0:8000/x", "/x"),
        ("//localhost:8000/x", "/x"),
        ("http://sandboxes.example:7070/v1/sandboxes", "/v1/sandboxes"),
        ("HTTP://SANDBOXES.example.:7070/v1", "/v1"),
        ("//sandboxes.example:7070/v1", "/v1"),
        ("http://sandboxes.example:8000/x", "/x"),
        ("  /x  ", "/x"),
    ],
)
def test_what_means_the_server_itself_is_put_below_the_prefix(reference: str, inside: str) -> None:
    assert moved(PLACE, reference.encode()) == PREFIX + inside.encode()


def test_an_application_that_knows_its_prefix_is_left_alone() -> None:
    own = PREFIX.decode()
    for written in (own, f"{own}/", f"{own}/a?b#c", f"http://sandboxes.example:7070{own}/a", f"{own}?x"):
        expected = written.removeprefix("http://sandboxes.example:7070").encode()
        assert moved(PLACE, written.encode()) == expected
    assert moved(PLACE, f"{own}/../../sandboxes".encode()) == PREFIX + b"/v1/sandboxes"
    assert moved(PLACE, f"{own}x/a".encode()) == PREFIX + f"{own}x/a".encode()


@pytest.mark.parametrize("place", [PLACE, PLAIN_PORT, LOOPBACK], ids=["name", "name alone", "loopback"])
@pytest.mark.parametrize(
    "reference",
    [
        "javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "file:///etc/passwd", "ftp://a.example/",
        "blob:http://a.example/x", "view-source:http://a.example", "x:y", "ws://a.example/",
        "http:/v1/sandboxes", "http:v1/sandboxes", "http:", "http:///v1", "///v1", "////a.example", "https:///a.example",
        "\\\\a.example/", "/\\a.example/", "http:\\\\a.example", "a\\..\\..\\v1", "http://a.example\\@b.example/",
        "/a\tb", "java\tscript:alert(1)", "/a\nb", "/a\rb", "\t//a.example", "/a\x00b", "/a\x7fb",
        "http://me@a.example/", "http://me:you@localhost:7070/", "http://a.example:/", "http://a.example:0/",
        "http://a.example:70700/", "http://a.example:7a/", "http://%6c%6fcalhost:7070/", "http://ｌocalhost:7070/",
        "http://a b.example/", "http://[::1/", "http://[zz]/", "http://./", "http://1.2.3.4.5/", "http://0x/x",
        "http://localhost/", "http://localhost:7070/v1", "http://LOCALHOST.:7070/v1", "http://x.localhost:7070/v1",
        "http://127.0.0.1:7071/", "http://127.1:7072/", "http://2130706433:7072/", "http://0x7f.1:7072/v1",
        "http://0177.0.0.1:7072/", "http://[::1]:7072/", "http://[::ffff:127.0.0.1]:7072/", "http://0:7072/",
        "http://[::]:7072/", "//127.0.0.1:7072/", "https://127.0.0.2/",
    ],
)  # fmt: skip
def test_what_is_not_plain_or_leads_to_the_clients_own_machine_is_dropped(place: ExposedPlace, reference: str) -> None:
    found = moved(place, reference.encode())
    # Of a client that came by this very name, it is this server.
    assert found is None or (place is LOOPBACK and ":7070" in reference and found == PREFIX + b"/v1")


@pytest.mark.parametrize("reference", ["http://other.example:7070/v1", "http://10.0.0.5:7070/v1", "//a.example:7070/"])
def test_another_name_with_the_port_of_this_server_is_taken_for_it(reference: str) -> None:
    assert moved(PLACE, reference.encode()) is None


@pytest.mark.parametrize(
    "reference",
    ["https://other.example/", "https://other.example/a/../b?c#d", "//other.example/", "http://other.example:8080/x",
     "https://accounts.example?to=http://localhost:7070/", "http://10.0.0.5/", "https://sandboxes.example.other/"],
)  # fmt: skip
def test_other_machines_are_led_to_as_it_was_written(reference: str) -> None:
    for place in (PLACE, PLAIN_PORT, LOOPBACK):
        assert moved(place, reference.encode()) == reference.encode()


def test_the_usual_ports_are_the_servers_where_a_client_names_none() -> None:
    for reference in (b"https://sandboxes.example/v1", b"http://sandboxes.example:80/v1", b"//sandboxes.example/v1"):
        assert moved(PLAIN_PORT, reference) == PREFIX + b"/v1"
    assert moved(PLAIN_PORT, b"http://sandboxes.example:7070/v1") is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("location", "../../../v1", f"{PREFIX.decode()}/v1"),
        ("content-location", "/x", f"{PREFIX.decode()}/x"),
        ("refresh", "5", "5"),
        ("refresh", "5; url=/x", f"5; url={PREFIX.decode()}/x"),
        ("refresh", "0.5;URL='/x'", f"0; url={PREFIX.decode()}/x"),
        ("refresh", '0, url = "/x" more', f"0; url={PREFIX.decode()}/x"),
        ("refresh", "0;/x", f"0; url={PREFIX.decode()}/x"),
        ("refresh", "0; url=http://localhost:7070/v1", None),
        ("refresh", "0; url=javascript:alert(1)", None),
        ("refresh", "soon", None),
        ("refresh", "9999999999; url=/x", None),
        ("link", "</x>; rel=preload; as=style", f"<{PREFIX.decode()}/x>; rel=preload; as=style"),
        ("link", '</x>; title="a, <b>", <y>', f'<{PREFIX.decode()}/x>; title="a, <b>", <{PREFIX.decode()}/app/y>'),
        ("link", "</x>; rel=a, <http://localhost:7070/v1>; rel=b", f"<{PREFIX.decode()}/x>; rel=a"),
        ("link", "<javascript:1>; rel=a", None),
        ("link", "nothing of the kind", None),
        ("link", '</x>; title="a', None),
        ("x-other", "http://localhost:7070/", "http://localhost:7070/"),
    ],
)
def test_every_header_that_leads_on_is_looked_at(name: str, value: str, expected: str | None) -> None:
    found = moved_header(PLACE, name.encode(), value.encode())
    assert found == (None if expected is None else expected.encode())


_PARTS = st.sampled_from(
    ["..", ".", "/", "//", "\\", "%2e", "%2E%2e", "%2f", "v1", "sandboxes", "?", "#", ":", "@", "http:", "https:",
     "a", "localhost", "sandboxes.example", ":7070", ":8000", "127.0.0.1", "[::1]", "0x7f.1", " ", "\t", ";",
     PREFIX.decode()]
)  # fmt: skip


@example("%2e;")
@example("../%2e%2e;")
@given(st.lists(_PARTS, max_size=12).map("".join))
def test_no_reference_gets_a_client_that_follows_it_out_of_the_prefix(reference: str) -> None:
    base = f"http://sandboxes.example:7070{PREFIX.decode()}/app/page"
    found = moved(PLACE, reference.encode())
    if found is None:
        return
    assert moved(PLACE, found) == found  # and neither does reading it twice
    to = urlsplit(urljoin(base, found.decode()))
    if to.hostname == "sandboxes.example":
        assert to.port == 7070
        assert to.path.startswith(PREFIX.decode())
        assert not {"..", "."} & {part.lower().replace("%2e", ".") for part in to.path.split("/")}
    else:
        assert found.startswith((b"http://", b"https://", b"//"))
        assert to.hostname not in ("localhost", "127.0.0.1", "::1", "0x7f.1")


def test_long_headers_take_no_longer_than_their_length() -> None:
    """They end, at 64 KiB, whatever they are made of."""
    for piece in (b"<", b"<a>;", b"<a>; b", b" ", b";", b"=", b'"', b"../", b"%2e", b"/", b",", b"<a>,"):
        for name in (b"link", b"refresh", b"location"):
            for value in (b"<a>" + piece * (65536 // len(piece)) + b"\\", b"1;" + piece * (65536 // len(piece))):
                assert len(moved_header(PLACE, name, value) or b"") <= 4 * len(value)
