"""The network of sandboxes: what may be reached, what a server is told, and what the sandbox must not see."""

from __future__ import annotations

from tests.mutants.breakage import Breakage

NETWORK = (
    # Packet rules
    Breakage(
        "packets-other-than-tcp-are-not-rejected",
        "ramet/isolation/kernel/packet_rules.py",
        "_compare(_NOT_EQUAL, bytes((_TCP,))) + _reject()),",
        "_compare(_NOT_EQUAL, bytes((_TCP,)))),",
        ("walls/test_attacks_on_the_network.py::test_a_listener_inside_gets_no_datagram_that_goes_elsewhere",),
    ),
    Breakage(
        "raw-connections-are-not-led-to-the-proxy",
        "ramet/isolation/kernel/packet_rules.py",
        "_compare(_EQUAL, bytes((_TCP,))) + _redirect(port)),",
        "_compare(_EQUAL, bytes((_TCP,)))),",
        ("walls/test_network_rules.py::test_a_program_that_knows_no_proxy_reaches_an_allowed_name",),
    ),
    # Rules
    Breakage(
        "what-is-denied-is-allowed",
        "ramet/network/connecting/decisions.py",
        "denied = _found(network.deny, name, port)",
        "denied = None",
        ("unit/test_network_deciding.py::test_what_is_denied_is_not_allowed_whatever_else_is",),
    ),
    Breakage(
        "allowed-name-may-lead-to-a-private-address",
        "ramet/network/connecting/targets.py",
        "allowed = [one for one, verdict in verdicts if verdict.allowed]",
        "allowed = [one for one, verdict in verdicts]",
        ("network/test_proxy_reaching.py::test_a_name_that_leads_to_an_address_that_is_not_public_is_refused",),
    ),
    Breakage(
        "private-address-counts-as-public",
        "ramet/network/connecting/addresses.py",
        "if not address.is_global or any(",
        "if any(",
        ("unit/test_network_deciding.py::test_an_address_that_is_not_public_is_told_apart",),
    ),
    Breakage(
        "mapped-address-is-not-what-it-stands-for",
        "ramet/network/connecting/addresses.py",
        "return mapped or address",
        "return address",
        ("unit/test_network_deciding.py::test_an_address_in_the_clothes_of_another_is_what_it_is",),
    ),
    Breakage(
        "tls-in-a-tunnel-may-name-another-host",
        "ramet/network/listeners/first_bytes.py",
        "if name != host:",
        "if False:",
        ("network/test_proxy_tunnels.py::test_what_could_lead_elsewhere_is_reset_and_logged",),
    ),
    Breakage(
        "bytes-of-a-sandbox-are-not-limited",
        "ramet/network/limits.py",
        "return total is not None and self.used_bytes >= total",
        "return False",
        ("network/test_http_requests.py::test_bytes_that_are_used_up_are_refused_with_403",),
    ),
    Breakage(
        "connections-of-a-sandbox-are-not-limited",
        "ramet/network/limits.py",
        "if self._targets >= self._network.connections:",
        "if False:",
        ("network/test_http_requests.py::test_one_connection_too_many_is_refused_with_429",),
    ),
    # HTTP
    Breakage(
        "head-may-hold-control-characters",
        "ramet/network/http/heads.py",
        r'_TEXT = rb"[^\x00-\x08\x0a-\x1f\x7f]*"',
        r'_TEXT = rb"[^\x0a\x0d]*"',
        ("network/test_http_heads.py::test_a_field_that_is_odd_is_refused_in_requests_and_answers",),
    ),
    Breakage(
        "lines-of-a-head-may-end-without-a-carriage-return",
        "ramet/network/http/heads.py",
        r'_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":" + _TEXT + rb"\r\n)*\r\n")',
        r'_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":" + _TEXT + rb"\r?\n)*\r\n")',
        ("network/test_http_heads.py::test_a_field_that_is_odd_is_refused_in_requests_and_answers",),
    ),
    Breakage(
        "request-may-have-two-lengths",
        "ramet/network/http/framing.py",
        "if len(lengths) > 1:",
        "if False:",
        ("network/test_http_heads.py::test_a_length_that_two_programs_could_read_in_two_ways_is_refused",),
    ),
    Breakage(
        "request-may-have-a-length-and-chunks",
        "ramet/network/http/framing.py",
        "if lengths and codings:",
        "if False:",
        ("network/test_http_heads.py::test_a_length_that_two_programs_could_read_in_two_ways_is_refused",),
    ),
    Breakage(
        "chunk-may-be-longer-than-its-size",
        "ramet/network/http/framing.py",
        "if not wanted.startswith(found):",
        "if False:",
        ("network/test_http_heads.py::test_chunks_that_are_odd_are_refused",),
    ),
    Breakage(
        "request-in-a-tunnel-may-name-another-host",
        "ramet/network/http/request_targets.py",
        "if said != host or (said_port != port",
        "if (said_port != port",
        ("network/test_proxy_tunnels.py::test_http_in_a_tunnel_is_held_to_the_host_of_the_tunnel",),
    ),
    # Secrets
    Breakage(
        "answers-are-not-masked",
        "ramet/network/secrets/masking.py",
        "return _masked(data, spans)[:keep]",
        "return data[:keep]",
        ("network/test_secrets.py::test_a_header_carries_the_value_and_its_echo_carries_stars",),
    ),
    Breakage(
        "secret-in-two-pieces-is-not-masked",
        "ramet/network/secrets/masking.py",
        "return self._release(data, self._may_go_on_from(data))",
        "return self._release(data, len(data))",
        ("network/test_attacks_on_secrets.py::test_pieces_make_no_difference_to_masking",),
    ),
    Breakage(
        "headers-of-answers-are-not-masked",
        "ramet/network/http/writing.py",
        "return [(secrets.masked(name), secrets.masked(value)) for _, name, value in fields]",
        "return [(name, value) for _, name, value in fields]",
        ("network/test_secrets.py::test_headers_of_an_answer_are_masked",),
    ),
    Breakage(
        "secret-goes-to-hosts-that-it-is-not-for",
        "ramet/network/secrets/peer_secrets.py",
        "return any(rule.means_name(name) and rule.has_port(port) for rule in self.hosts)",
        "return True",
        ("network/test_secrets.py::test_another_host_is_sent_the_placeholder_and_nothing_is_changed",),
    ),
    Breakage(
        "secret-goes-to-other-ports-of-its-host",
        "ramet/network/secrets/peer_secrets.py",
        "return any(rule.means_name(name) and rule.has_port(port) for rule in self.hosts)",
        "return any(rule.means_name(name) for rule in self.hosts)",
        ("network/test_secrets_parts.py::test_a_secret_is_for_the_hosts_and_ports_that_it_lists",),
    ),
    Breakage(
        "secret-goes-in-the-clear-where-tls-is-at-home",
        "ramet/network/secrets/peer_secrets.py",
        "put_in = secrets if secure or port != _TLS_PORT else ()",
        "put_in = secrets",
        ("network/test_secrets_parts.py::test_values_are_not_put_in_on_the_port_of_tls_without_tls_but_masked",),
    ),
    Breakage(
        "secret-may-begin-another-header",
        "ramet/network/secrets/peer_secrets.py",
        "if not isinstance(value, str) or not value.isprintable() or not value:",
        "if not isinstance(value, str) or not value:",
        ("network/test_secrets_parts.py::test_a_value_is_in_no_repr_and_no_error",),
    ),
    Breakage(
        "secret-is-shown-in-a-repr",
        "ramet/network/secrets/peer_secrets.py",
        "return f\"<PeerSecret for {', '.join(map(str, self.hosts))}>\"",
        'return f"<PeerSecret {self.value}>"',
        ("network/test_secrets_parts.py::test_a_value_is_in_no_repr_and_no_error",),
    ),
    Breakage(
        "password-in-a-url-is-logged",
        "ramet/network/http/request_targets.py",
        'host = authority.rpartition(b"@")[2]',
        "host = authority",
        ("network/test_refused_in_the_log.py::test_a_malformed_request_to_the_proxy_is_logged",),
    ),
    Breakage(
        "sandbox-writes-lines-into-the-log",
        "ramet/engine/network/log.py",
        "    if text.isprintable():\n        return text\n",
        "    if text:\n        return text\n",
        ("unit/test_network_log.py::test_no_text_can_steer_a_terminal_or_look_like_another_line",),
    ),
)
