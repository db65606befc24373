"""What `ramet doctor` advises, on hosts that are not here."""

from __future__ import annotations

import os

import pytest

from ramet.isolation import doctor, hints
from ramet.isolation.kernel import cgroups
from ramet.isolation.launch import HELPER
from ramet.isolation.own_processes import powers

_RESTRICTED = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_WITHOUT_CPU = cgroups.Delegation(2, {"memory": "/a", "pids": "/a"})


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An ordinary user's, with systemd and no container. Gives its settings, to be changed."""
    settings: dict[str, str] = {}
    monkeypatch.setattr(doctor, "_setting", settings.get)
    monkeypatch.setattr(hints, "in_container", lambda: False)
    monkeypatch.setattr(hints, "proc_is_masked", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "_has_systemd", lambda: True)
    return settings


def test_where_apparmor_restricts_namespaces_a_profile_for_the_helper_comes_first(host: dict[str, str]) -> None:
    host[_RESTRICTED] = "1"
    finding = doctor._finding("no", "user-namespace", 'write "0 1000 1" to /proc/self/uid_map: Operation not permitted')
    assert finding.fix is not None
    profile, _, blunt = finding.fix.partition("\nor allow")
    helper = os.path.realpath(HELPER)
    assert f'profile ramet "{helper}" flags=(unconfined) {{\n  userns,\n}}\n' in profile
    assert "sudo apparmor_parser -r /etc/apparmor.d/ramet" in profile
    assert "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in blunt


def test_a_path_with_signs_that_apparmor_would_expand_is_quoted() -> None:
    assert r'profile ramet "/opt/my \[env\]/\{a\}\*/ramet-pod" ' in doctor.apparmor_profile(
        "/opt/my [env]/{a}*/ramet-pod"
    )


def test_in_a_container_of_such_a_host_the_flags_come_first(
    host: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host[_RESTRICTED] = "1"
    monkeypatch.setattr(hints, "in_container", lambda: True)
    fix = doctor._finding("no", "user-namespace", "unshare(CLONE_NEWUSER): Operation not permitted").fix
    assert fix is not None
    assert fix.startswith("in a container: docker run --security-opt seccomp=unconfined")
    assert "apparmor_parser" not in fix


@pytest.mark.parametrize("name", ["user-namespace", "own-root", "proc", "compare-processes"])
def test_where_proc_is_masked_all_three_flags_are_named_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "proc_is_masked", lambda: True)
    fix = doctor._finding("no", name, "Operation not permitted").fix
    assert fix is not None
    for flag in ("seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"):
        assert f"--security-opt {flag}" in fix


def test_root_without_the_capability_to_map_itself_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(powers, "has_capability", lambda number: number != powers.CAP_SETFCAP)
    fix = doctor._finding("no", "user-namespace", 'write "0 0 1" to /proc/self/uid_map: Operation not permitted').fix
    assert fix is not None
    assert fix.startswith("root needs CAP_SETFCAP")


def test_what_was_not_tried_says_what_it_needs_and_no_more() -> None:
    finding = doctor._finding("untried", "overlay", "user-namespace")
    assert (finding.ok, finding.tried, finding.needed, finding.fix) == (False, False, True, None)
    assert finding.detail.endswith(": not tried: needs user-namespace")
    rules = doctor._packet_rules(doctor._finding("untried", "network-namespace", "user-namespace"))
    assert (rules.tried, rules.fix) == (False, None)
    assert rules.detail.endswith(": not tried: needs user-namespace")


def _fix_for(made: cgroups.Delegation, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(cgroups, "delegate", lambda _: made)
    monkeypatch.setattr(cgroups, "undo", lambda _: None)
    finding = doctor._control_groups()
    assert not finding.ok
    assert finding.fix is not None
    return finding.fix


def test_a_user_without_the_cpu_controller_is_told_how_his_manager_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fix = _fix_for(_WITHOUT_CPU, monkeypatch)
    assert "sudo systemctl edit user@.service" in fix
    assert "Delegate=cpu memory pids" in fix


def test_a_user_without_any_group_is_told_to_take_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "systemd-run --user --scope -p Delegate=yes" in _fix_for(cgroups.NONE, monkeypatch)


@pytest.mark.parametrize("made", [cgroups.NONE, _WITHOUT_CPU])
def test_root_is_told_to_take_a_scope_or_a_service_of_the_system(
    made: cgroups.Delegation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    fix = _fix_for(made, monkeypatch)
    assert "systemd-run --scope -p Delegate=yes" in fix
    assert "service with Delegate=yes" in fix


@pytest.mark.parametrize("made", [cgroups.NONE, _WITHOUT_CPU])
def test_in_a_container_nobody_is_sent_to_systemd(made: cgroups.Delegation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "in_container", lambda: True)
    fix = _fix_for(made, monkeypatch)
    assert "systemd" not in fix
    assert "/sys/fs/cgroup writable" in fix
