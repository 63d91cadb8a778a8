"""What an audit log says, and how it compares with what is granted."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.e2e.lab.audit_log import AuditedCall, AuditLog
from tests.e2e.product.granted import (
    Right,
    not_called,
    not_granted,
    refused_for_good,
    rights_of_roles,
)
from tests.e2e.run_record import Run, past_runs

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
GET_LEASE = AuditedCall(
    NOW, "me", "get", "coordination.k8s.io", "leases", "ours", "one", allowed=True
)
RIGHT = Right("get", "coordination.k8s.io", "leases", "ours", "one")


def event(decision: str = "allow", **about: str) -> dict[str, Any]:
    return {
        "requestReceivedTimestamp": "2027-01-15T08:00:00.000000Z",
        "user": {"username": "me"},
        "verb": "get",
        "requestURI": "/version?timeout=5s",
        "annotations": {"authorization.k8s.io/decision": decision},
        **({"objectRef": about} if about else {}),
    }


def calls(folder: Path, *events: dict[str, Any], end: str = "\n") -> list[AuditedCall]:
    log = AuditLog(folder, ["me"])
    (folder / "audit.log").write_text("\n".join(map(json.dumps, events)) + end)
    return list(log.calls())


def test_a_call_on_an_object(tmp_path: Path) -> None:
    about = {
        "apiGroup": "coordination.k8s.io",
        "resource": "leases",
        "namespace": "ours",
        "name": "one",
    }
    assert calls(tmp_path, event(**about)) == [GET_LEASE]


def test_a_subresource_and_a_refusal(tmp_path: Path) -> None:
    (found,) = calls(tmp_path, event("forbid", resource="pods", subresource="log"))
    assert (found.group, found.resource, found.allowed) == ("", "pods/log", False)


def test_a_path_without_an_object(tmp_path: Path) -> None:
    (found,) = calls(tmp_path, event())
    assert found.resource == "/version"


def test_a_line_that_is_being_written_is_for_later(tmp_path: Path) -> None:
    assert len(calls(tmp_path, event(), event(), end="")) == 1


def test_rotated_files_count(tmp_path: Path) -> None:
    (tmp_path / "audit-2027-01-15T07-00-00.000.log").write_text(json.dumps(event()) + "\n")
    assert len(calls(tmp_path, event())) == 2


def test_only_these_users_are_written_down(tmp_path: Path) -> None:
    (policy, _) = AuditLog(tmp_path, ["me"]).arguments()
    rules = json.loads(Path(policy.partition("=")[2]).read_text())["rules"]
    assert rules == [{"level": "Metadata", "users": ["me"]}, {"level": "None"}]


def test_another_verb_object_or_namespace_is_another_right() -> None:
    assert not_granted([GET_LEASE], [RIGHT]) == []
    for other in (
        replace(GET_LEASE, verb="delete"),
        replace(GET_LEASE, group=""),
        replace(GET_LEASE, resource="leases/status"),
        replace(GET_LEASE, namespace="kube-system"),
        replace(GET_LEASE, name="two"),
    ):
        assert not_granted([GET_LEASE, other], [RIGHT]) == [other]


def test_what_is_granted_everywhere_covers_every_place() -> None:
    everywhere = replace(RIGHT, namespace=None, name=None)
    assert not_granted([GET_LEASE, replace(GET_LEASE, namespace="x", name="y")], [everywhere]) == []


def test_a_right_that_nobody_has_used() -> None:
    unused = replace(RIGHT, verb="patch")
    assert not_called([RIGHT, unused], [GET_LEASE]) == [unused]
    assert str(unused) == "patch leases.coordination.k8s.io/one in ours"


def test_every_combination_of_a_rule_is_a_right() -> None:
    rule = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]}
    role = {"kind": "ClusterRole", "metadata": {"name": "x"}, "rules": [rule]}
    account = {"kind": "ServiceAccount", "metadata": {"name": "x"}}
    assert rights_of_roles([account, role]) == {
        Right(verb, "", resource) for verb in ("list", "watch") for resource in ("nodes", "pods")
    }


def test_what_is_refused_and_allowed_a_moment_later_is_the_servers_start() -> None:
    refused = replace(GET_LEASE, allowed=False)
    assert refused_for_good([refused]) == [refused]
    assert refused_for_good([refused, replace(GET_LEASE, at=NOW + timedelta(seconds=2))]) == []
    for other in (
        replace(GET_LEASE, at=NOW - timedelta(seconds=2)),
        replace(GET_LEASE, at=NOW + timedelta(seconds=20)),
        replace(GET_LEASE, at=NOW + timedelta(seconds=2), name="two"),
        replace(refused, at=NOW + timedelta(seconds=2)),
    ):
        assert refused in refused_for_good([refused, other])


def test_a_call_belongs_to_the_test_that_had_begun(tmp_path: Path) -> None:
    log, step = AuditLog(tmp_path, ["me"]), timedelta(microseconds=1)
    moments = [NOW + n * step for n in range(-1, 4)]
    events = [{**event(), "requestReceivedTimestamp": x.isoformat()} for x in moments]
    (tmp_path / "audit.log").write_text("".join(f"{json.dumps(x)}\n" for x in events))
    run = Run(log, is_part=False)
    run.begins("first", NOW)
    run.begins("second", NOW + 2 * step)
    assert [x.test for x in run.calls()] == ["", "first", "first", "second", "second"]
    assert [x.call.at for x in run.calls()] == moments


def kept(folder: Path, name: str, *, is_part: bool) -> Path:
    """What a process of that name leaves, after a call in a test of that name."""
    (folder / name).mkdir()
    log, file = AuditLog(folder / name, ["me"]), folder / f"{name}.json"
    (folder / name / "audit.log").write_text(json.dumps(event()) + "\n")
    run = Run(log, is_part=is_part)
    run.begins(name, NOW)
    run.keep(file)
    return file


def test_what_several_processes_left_is_one_run(tmp_path: Path) -> None:
    files = [kept(tmp_path, name, is_part=False) for name in ("a", "b")]
    found = past_runs(files)
    assert [(x.call, x.test) for x in found.calls] == [
        (replace(GET_LEASE, group="", resource="/version", namespace="", name=""), name)
        for name in ("a", "b")
    ]
    assert not found.is_part


def test_a_run_is_a_part_where_nobody_ran_all(tmp_path: Path) -> None:
    part, whole = kept(tmp_path, "a", is_part=True), kept(tmp_path, "b", is_part=False)
    assert past_runs([part]).is_part
    assert not past_runs([part, whole]).is_part
