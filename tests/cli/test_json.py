"""What `--json` prints, key by key and in order: scripts of users read it. A new key may come, none may go."""

from __future__ import annotations

from pathlib import Path

from carpool import calls
from carpool.core.node.model import Needs
from tests.daemon.node import MIB, Node, in_node

JOB = [
    "id",
    "name",
    "tenant",
    "state",
    "device",
    "lane",
    "priority",
    "weight_milli",
    "steps",
    "steps_declared",
    "step_ns",
    "remaining_ns",
    "arrived_ns",
    "state_ns",
    "served_ns",
    "waited_ns",
    "spent_ns",
    "waited_for_ns",
    "silent_ns",
    "is_hog",
    "needs",
    "promised_bytes",
    "live_bytes",
    "pending_bytes",
    "cap_bytes",
    "guaranteed_milli",
    "limit_milli",
    "is_suspended",
    "leaving_for",
    "is_shrinking",
    "parked_bytes",
    "move_ns",
    "move_trouble",
    "reason",
    "moving_to",
    "departures",
    "kept_on",
    "kept_bytes",
    "move_refused",
    "change_ns",
    "quantum_ns",
    "quantum_why",
    "borrowed_ns",
    "user",
    "orders",
    "uid",
]
LIVE_JOB = [
    *JOB,
    "pids",
    "argv",
    "gradient_bytes",
    "device_ns",
    "processes",
    "orphans",
    "unwritable",
    "limit_loss",
    "container",
    "start",
]
ENDED_JOB = [
    *JOB,
    "argv",
    "container",
    "start",
    "refusals",
]
DEVICE = ["id", "capacity_bytes", "promised_bytes", "lanes_bytes", "free_bytes", "live_bytes", "claimant", "lanes"]
STATUS = [
    "version",
    "pid",
    "run",
    "state",
    "policy",
    "device",
    "quantum_ns",
    "latency_ns",
    "share_policy",
    "hog_after_ns",
    "host_bytes_max",
    "tenant_weights_milli",
    "host_bytes",
    "kept_bytes",
    "uptime_ns",
    "cpu_s",
    "jobs",
    "journal_bytes_max",
    "journal_bytes",
    "journal_waiting_rows",
    "journal_dropped_rows",
    "log_dropped_lines",
    "journal_trouble",
    "descriptor_trouble",
    "observers_dropped",
    "policy_trouble",
    "warm",
    "warm_parents",
    "devices",
    "turns",
]
STATUS_DEVICE = [
    "id",
    "capacity_bytes",
    "promised_bytes",
    "lanes_bytes",
    "free_bytes",
    "live_bytes",
    "claimant",
    "lanes",
    "kind",
    "title",
]
NODE = ["policy", "host_bytes", "host_bytes_max", "devices", "jobs", "now_ns"]
SUBMITTED = ["job", "log"]


def test_ps_explain_and_status_print_what_they_always_did(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        shown = calls.as_dict(node.queries.ps(with_ended=False))
        assert list(shown) == NODE
        assert [list(job) for job in _dicts(shown["jobs"])] == [LIVE_JOB]
        assert [list(device) for device in _dicts(shown["devices"])] == [DEVICE]
        status = calls.as_dict(node.queries.status())
        assert list(status) == STATUS
        assert [list(device) for device in _dicts(status["devices"])] == [STATUS_DEVICE]
        assert list(calls.as_dict(node.queries.job("a").job)) == LIVE_JOB

    in_node(tmp_path, act)


def test_a_job_that_is_over_and_one_that_is_submitted_too() -> None:
    assert list(calls.as_dict(calls.Job(id="a", state="finished", refusals=""))) == ENDED_JOB
    submitted = calls.as_dict(calls.Submitted(job=calls.Job(id="a"), log="a.log"))
    assert list(submitted) == SUBMITTED
    assert [list(job) for job in _dicts([submitted["job"]])] == [LIVE_JOB]


def _dicts(found: object) -> list[dict[str, object]]:
    assert isinstance(found, list)
    return found
