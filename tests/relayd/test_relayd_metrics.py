from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client import generate_latest
from relayd.metrics import PARENT_CHANGE_REASONS, Reading, RelaydMetrics

from chappe.core.events import ObjectState
from chappe.core.reasons import ParentLossReason
from chappe.core.upstream import REACTIONS

READING = Reading(
    received_bytes=100,
    forwarded_bytes=50,
    downlink_bytes_per_s=12.5,
    uplink_bytes_per_s=0.0,
    backlog_bytes=7,
    versions={ObjectState.RECEIVED: 3, ObjectState.VERIFIED: 2, ObjectState.INSTALLED: 1},
    standby=True,
    hops={"downlink": ["tcp"], "uplink": ["grpc", "tcp", "tcp"]},
)

NAMES = {
    "relayd_received_bytes_total",
    "relayd_forwarded_bytes_total",
    "relayd_chunk_verify_failures_total",
    "relayd_hop_bytes_per_second",
    "relayd_hop_transport",
    "relayd_backlog_bytes",
    "relayd_snapshot_version",
    "relayd_install_seconds_count",
    "relayd_parent_changes_total",
}


def test_all_promised_names_are_there_before_anything_has_happened() -> None:
    metrics = RelaydMetrics(lambda: READING)
    shown = generate_latest(metrics.registry).decode()
    assert {line.split("{")[0].split(" ")[0] for line in shown.splitlines()} >= NAMES
    value = metrics.registry.get_sample_value
    assert value("relayd_received_bytes_total") == 100
    assert value("relayd_hop_bytes_per_second", {"direction": "downlink"}) == 12.5
    assert value("relayd_hop_transport", {"direction": "uplink", "transport": "tcp"}) == 2
    assert value("relayd_hop_transport", {"direction": "downlink", "transport": "grpc"}) == 0
    assert value("relayd_snapshot_version", {"state": "verified"}) == 2
    assert value("relayd_parent_changes_total", {"reason": "stalled"}) == 0


def test_effects_are_counted_under_closed_labels() -> None:
    metrics = RelaydMetrics(lambda: READING)
    metrics.count("parent_changes_total", (("reason", "broken"),))
    assert metrics.registry.get_sample_value("relayd_parent_changes_total", {"reason": "broken"}) == 1
    with pytest.raises(KeyError):
        metrics.count("something_else_total", ())


def test_every_reason_for_a_lost_parent_has_a_reaction_and_a_label() -> None:
    assert set(REACTIONS) == set(ParentLossReason)
    assert set(PARENT_CHANGE_REASONS) == {"reassigned", *(r.value for r in ParentLossReason)}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say() -> None:
    shown = generate_latest(RelaydMetrics(lambda: READING).registry)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=shown, capture_output=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
