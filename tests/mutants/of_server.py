"""The server: who calls, what they may have, and what of a request is believed."""

from __future__ import annotations

from tests.mutants.breakage import Breakage

SERVER = (
    # Keys and owners
    Breakage(
        "revoked-key-still-opens",
        "ramet/doors/http/access/key_records.py",
        "self._by_digest = {digest: _Secret(row) for digest, row in found if row.revoked_ms is None}",
        "self._by_digest = {digest: _Secret(row) for digest, row in found}",
        ("server/test_keys.py::test_a_key_revoked_by_another_process_ends_at_once",),
    ),
    Breakage(
        "key-is-stored-as-it-is",
        "ramet/doors/http/access/keys.py",
        'return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()',
        "return secret",
        ("server/test_keys.py::test_the_secret_is_nowhere_in_the_files",),
    ),
    Breakage(
        "wrong-key-is-the-local-user",
        "ramet/doors/http/access/auth.py",
        "if not self._keyless or self._records.keys.any_for_sandboxes:",
        "if not self._keyless:",
        ("server/test_auth.py::test_a_wrong_key_is_never_the_local_user",),
    ),
    Breakage(
        "expired-key-still-opens",
        "ramet/doors/http/access/auth.py",
        "if key.expired(now_ms()):",
        "if False:",
        ("server/test_key_lifetimes.py::test_an_expired_key_is_refused_with_the_day_and_the_cure",),
    ),
    Breakage(
        "earlier-secret-opens-for-ever",
        "ramet/doors/http/access/key_records.py",
        "return self.until_ms is None or now < self.until_ms",
        "return True",
        ("server/test_key_lifetimes.py::test_a_rotated_key_has_a_new_secret_and_the_old_one_for_a_while",),
    ),
    Breakage(
        "operator-runs-code-in-sandboxes-of-others",
        "ramet/doors/http/access/auth.py",
        'return {**fields, "owner": exchange.owner}',
        'return {**fields, "owner": None if getattr(exchange, "operates", False) else exchange.owner}',
        ("server/test_operator.py::test_an_operator_runs_nothing_and_reads_nothing_in_sandboxes_of_others",),
    ),
    Breakage(
        "page-of-another-site-is-answered",
        "ramet/doors/http/access/auth.py",
        'if foreign or (origin is not None and origin != b"http://" + host):',
        "if foreign:",
        ("server/test_auth.py::test_a_page_of_another_site_is_refused",),
    ),
    Breakage(
        "name-that-was-made-to-point-here-is-answered",
        "ramet/doors/http/access/auth.py",
        "if host is None or _without_port(host) not in _LOOPBACK_NAMES:",
        "if host is None:",
        ("server/test_auth.py::test_a_name_that_was_made_to_point_here_is_refused",),
    ),
    Breakage(
        "owner-in-a-header-is-believed",
        "ramet/doors/http/access/auth.py",
        'return {**fields, "owner": exchange.owner}',
        'return {"owner": exchange.owner, **fields}',
        ("server/test_calls_over_http.py::test_an_owner_in_the_header_is_not_believed",),
    ),
    Breakage(
        "end-of-a-sandbox-is-recorded-for-everybody",
        "ramet/doors/http/records.py",
        "WHERE id = ? AND owner = ? AND ended_ms IS NOT NULL",
        "WHERE id = ? AND ? IS NOT NULL AND ended_ms IS NOT NULL",
        ("server/test_records.py::test_a_sandbox_that_ended_is_told_with_its_cause_to_its_owner_only",),
    ),
    Breakage(
        "client-may-ask-about-everybody",
        "ramet/doors/http/access/admission.py",
        "        calls.UNEXPOSE,\n    )",
        "        calls.UNEXPOSE,\n        calls.STATS,\n    )",
        ("server/test_calls_over_http.py::test_kinds_that_are_not_for_clients",),
    ),
    # How much
    Breakage(
        "cells-of-a-key-are-not-limited",
        "ramet/doors/http/access/auth.py",
        "if most is not None and running >= most:",
        "if False:",
        ("server/test_auth.py::test_cells_are_counted_per_owner",),
    ),
    Breakage(
        "cell-that-ended-still-counts",
        "ramet/doors/http/access/auth.py",
        "self._cells[owner] -= 1",
        "pass",
        ("server/test_auth.py::test_cells_are_counted_per_owner",),
    ),
    Breakage(
        "requests-of-a-key-are-not-limited",
        "ramet/doors/http/access/auth.py",
        "if of_owner >= settings.requests_of_an_owner:",
        "if False:",
        ("server/test_auth.py::test_requests_are_counted_per_owner_and_together",),
    ),
    Breakage(
        "request-that-is-over-still-holds-memory",
        "ramet/doors/http/access/auth.py",
        "self._all_held_bytes -= held_bytes",
        "pass",
        ("server/test_auth.py::test_what_requests_hold_is_counted_until_they_are_over",),
    ),
    Breakage(
        "key-reaches-what-the-server-does-not-allow",
        "ramet/doors/http/access/network_bounds.py",
        "return NetworkSpec(open=one.open and other.open,",
        "return NetworkSpec(open=one.open or other.open,",
        ("server/test_bounds.py::test_the_less_of_two_is_what_both_allow",),
    ),
    # Once and only once
    Breakage(
        "same-key-for-another-request-is-answered",
        "ramet/doors/http/requests/idempotency.py",
        "    if before != now:\n",
        "    if False:\n",
        ("server/test_idempotency.py::test_another_request_with_the_same_key_is_a_conflict",),
    ),
    Breakage(
        "repeated-request-is-carried-out-again",
        "ramet/doors/http/requests/idempotency.py",
        "    if recorded is not None:\n",
        "    if False:\n",
        ("server/test_idempotency.py::test_the_same_request_gets_the_same_answer",),
    ),
    Breakage(
        "idempotency-key-is-everybodys",
        "ramet/doors/http/records.py",
        "WHERE owner = ? AND key = ? AND created_ms > ?",
        "WHERE ? IS NOT NULL AND key = ? AND created_ms > ?",
        ("server/test_idempotency.py::test_keys_of_two_owners_are_two_keys",),
    ),
    Breakage(
        "cell-is-sent-again-when-its-connection-breaks",
        "ramet/transport/http/call.py",
        "_REPEATABLE = calls.MAKING",
        "_REPEATABLE = calls.MAKING | {calls.RUN}",
        ("http_client/test_broken_connections.py::test_a_cell_whose_server_dies_without_an_answer_is_not_run_again",),
    ),
    # What comes over the wire
    Breakage(
        "body-of-a-request-is-not-bounded",
        "ramet/doors/http/requests/exchange.py",
        "if length is not None and length.isdigit() and int(length) > limit_bytes:",
        "if False:",
        ("server/test_connections.py::test_a_body_that_is_too_large_is_refused_before_it_is_sent",),
    ),
    Breakage(
        "body-of-unknown-length-is-not-bounded",
        "ramet/doors/http/requests/exchange.py",
        "            if len(parts) > limit:\n",
        "            if False:\n",
        ("server/test_connections.py::test_a_body_of_unknown_length_is_counted",),
    ),
    Breakage(
        "head-of-a-request-is-not-bounded",
        "ramet/web/connection_limits.py",
        "if len(self.url) > self.limits.head_bytes:",
        "if False:",
        ("server/test_connections.py::test_an_address_that_is_too_long_is_refused",),
    ),
    Breakage(
        "trailer-counts-as-a-header",
        "ramet/web/connection_limits.py",
        "        if self._in_body:\n            return  # a trailer",
        "        if False:\n            return  # a trailer",
        ("server/test_attacks_on_the_server.py::test_a_header_behind_the_body_means_nothing",),
    ),
    Breakage(
        "request-is-carried-out-without-its-body",
        "ramet/web/connection_limits.py",
        "if self.parser.should_upgrade() and any(",
        "if False and any(",
        ("server/test_attacks_on_the_server.py::test_a_request_is_not_carried_out_without_its_body",),
    ),
    Breakage(
        "field-may-be-given-twice",
        "ramet/doors/http/requests/bodies.py",
        "    if len(found) != len(pairs):\n",
        "    if False:\n",
        ("server/test_bodies.py::test_what_is_not_one_object_of_json_is_refused",),
    ),
    Breakage(
        "something-may-follow-the-last-frame",
        "ramet/doors/http/engine_link/frame_relay.py",
        "            if self.final:\n                raise ProtocolError(",
        "            if False:\n                raise ProtocolError(",
        ("server/test_relay.py::test_what_follows_the_last_frame_is_refused",),
    ),
    # The log
    Breakage(
        "client-writes-lines-into-the-log",
        "ramet/web/request_log.py",
        "return text if _PLAIN.fullmatch(text) else json.dumps(text)",
        "return text",
        ("web/test_request_log.py::test_what_a_client_sent_cannot_fake_or_break_a_line",),
    ),
)
