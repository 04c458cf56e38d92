"""The coordinator's metrics: names of design.md, closed labels, series of old versions gone, accepted by promtool."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from chappe.coordinator.metrics import CoordinatorMetrics
from chappe.core.effects import Count
from chappe.core.reasons import RebuildReason
from chappe.core.views import ChainView, FractionsView, PublicationView, RelayState, RelayView, StatusView

PUBLICATION = PublicationView(
    run="r",
    object_id="o",
    version=3,
    root="xxh3_128:ab",
    kind="full",
    payload_bytes=1000,
    snapshot_bytes=1000,
    targeted=4,
    installed=4,
    lost=(),
    installed_fraction=1.0,
    t_bcast={"0.5": 1.0, "0.9": 2.0, "1.0": 3.0},
    floor_s=2.0,
    chains=(ChainView(("a", "b")), ChainView(("c", "d"))),
    fractions=FractionsView(1.0, 1.0, 0.75),
    state="closed",
    reason="",
    objects=("o",),
    elapsed_s=3.0,
    topology="chains",
)
RELAY = RelayView("a", "installed", "o", 0, 0, 3, 3, 3, 1, 1.0, 1.0, "assumed", "", "w", "h:1", 1.0)


def metrics_of(*publications: PublicationView, relays: tuple[RelayView, ...] = ()) -> CoordinatorMetrics:
    return CoordinatorMetrics(lambda: StatusView("r", relays, publications))


def samples(metrics: CoordinatorMetrics, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_the_newest_version_is_described() -> None:
    metrics = metrics_of(PUBLICATION)
    assert samples(metrics, "chappe_install_fraction") == {
        ("3", "received"): 1.0,
        ("3", "verified"): 1.0,
        ("3", "installed"): 0.75,
    }
    assert samples(metrics, "chappe_broadcast_seconds") == {("0.5",): 1.0, ("0.9",): 2.0, ("1.0",): 3.0}
    assert samples(metrics, "chappe_broadcast_floor_ratio") == {(): 1.5}
    assert samples(metrics, "chappe_chains") == {(): 2}
    assert samples(metrics, "chappe_payload_bytes") == {("full",): 1000}


def test_series_of_versions_older_than_the_previous_one_are_gone() -> None:
    versions = [replace(PUBLICATION, version=v, object_id=f"o{v}") for v in (7, 6, 5)]
    failed = replace(PUBLICATION, version=8, state="failed")
    shown = {labels[0] for labels in samples(metrics_of(failed, *versions), "chappe_install_fraction")}
    assert shown == {"7", "6"}


def test_a_publication_under_way_has_no_times_yet() -> None:
    metrics = metrics_of(replace(PUBLICATION, t_bcast={"0.5": 1.0}, state="open"))
    assert samples(metrics, "chappe_broadcast_seconds") == {("0.5",): 1.0}
    assert samples(metrics, "chappe_broadcast_floor_ratio") == {}


def test_relays_are_counted_in_every_state() -> None:
    relays = (RELAY, replace(RELAY, name="b"), replace(RELAY, name="c", state="lost"))
    counted = samples(metrics_of(relays=relays), "chappe_relays")
    assert set(counted) == {(state.value,) for state in RelayState}
    assert (counted["installed",], counted["lost",], counted["idle",]) == (2, 1, 0)


def test_every_rebuild_reason_is_a_series_from_the_start_and_counts() -> None:
    metrics = metrics_of()
    for reason in RebuildReason:
        metrics.count(Count("segment_rebuilds_total", (("reason", reason.value),)))
    metrics.count(Count("segment_rebuilds_total", (("reason", "joined"),)))
    counted = samples(metrics, "chappe_segment_rebuilds_total")
    assert set(counted) == {(reason.value,) for reason in RebuildReason}
    assert (counted["joined",], counted["drained",]) == (2, 1)
    with pytest.raises(KeyError):
        metrics.count(Count("unheard_of"))


def test_demotions_are_counted() -> None:
    metrics = metrics_of()
    assert samples(metrics, "chappe_relay_demotions_total") == {(): 0}
    metrics.count(Count("relay_demotions_total"))
    assert samples(metrics, "chappe_relay_demotions_total") == {(): 1}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_nothing_to_complain_about() -> None:
    text = generate_latest(metrics_of(PUBLICATION, relays=(RELAY,)).registry)
    check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (check.returncode, check.stderr.decode()) == (0, "")
