"""The run's Prometheus metrics: there where `[training]` is configured, each series as long as its value is known."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from chappe.core.training_config import FRACTIONS, Verdict
from chappe.core.training_view import TrainingView
from chappe.trajectory_metric import trajectories_metric


def _gauge(name: str, text: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def training_metrics(view: TrainingView) -> Iterator[Metric]:
    yield _gauge(
        "chappe_overlap_slack_seconds",
        "What a period leaves for rollouts: kappa x T_train - T_bcast. Not above zero: infeasible.",
        view.slack_s,
    )
    yield _gauge(
        "chappe_required_rollouts_per_second",
        "What the pool has to make for the learner not to wait.",
        view.required_rollouts_per_s,
    )
    yield _gauge(
        "chappe_pool_rollouts_per_second",
        "What the active workers make, as reported or declared.",
        view.pool_rollouts_per_s,
    )
    yield _gauge(
        "chappe_required_workers",
        "Workers of the fleet's mean rate that clear gamma times what is required.",
        view.required_workers,
    )
    yield _gauge("chappe_train_step_seconds", "T_train, as told, configured or measured.", view.t_train_s)
    expected = GaugeMetricFamily(
        "chappe_broadcast_expected_seconds",
        "T_bcast of the next version, or of the one on its way: at the target fraction, and until all have it.",
        labels=["fraction"],
    )
    if view.t_bcast_s is not None:
        expected.add_metric([FRACTIONS[view.fraction]], view.t_bcast_s)
    if view.tail_s is not None and view.fraction < 1:
        expected.add_metric(["1.0"], view.tail_s)
    yield expected
    yield trajectories_metric(view.admitted, view.discarded)
    verdict = GaugeMetricFamily("chappe_training_verdict", "1 for the verdict that stands.", labels=["verdict"])
    for one in Verdict:
        verdict.add_metric([one.value], one.value == view.verdict)
    yield verdict
