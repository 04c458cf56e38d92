"""`chappe_trajectories_total`: shown by the learner, and by the coordinator as the learner told it."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, Metric


def trajectories_metric(admitted: int, discarded: int) -> Metric:
    family = CounterMetricFamily(
        "chappe_trajectories",
        "Trajectories that the learner has judged, by whether it admitted them.",
        labels=["admitted"],
    )
    family.add_metric(["true"], admitted)
    family.add_metric(["false"], discarded)
    return family
