"""The coordinator's Prometheus metrics (names: design.md, section 5).

Gauges are read from the fleet when they are scraped, so a series is there exactly as long as what it describes: those
of versions older than the current and the previous one go by themselves. Counters are what the fleet machine asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chappe.coordinator.training_metrics import training_metrics
from chappe.core.effects import Count
from chappe.core.reasons import RebuildReason
from chappe.core.views import PublicationView, RelayState, StatusView

VERSIONS_SHOWN = 2
_FRACTIONS = ("0.5", "0.9", "1.0")
_UNFINISHED = frozenset({"cancelled", "failed"})


class CoordinatorMetrics:
    """One registry for one coordinator: two in a process do not meet."""

    def __init__(self, view: Callable[[], StatusView]) -> None:
        self.registry = CollectorRegistry()
        self._counters = {
            "segment_rebuilds": Counter(
                "chappe_segment_rebuilds_total",
                "Times a relay and what is below it got another parent.",
                ["reason"],
                registry=self.registry,
            ),
            "relay_demotions": Counter(
                "chappe_relay_demotions_total",
                "Times a relay was found too slow as a sender, and placed last.",
                registry=self.registry,
            ),
        }
        for reason in RebuildReason:
            self._counters["segment_rebuilds"].labels(reason=reason.value)
        self.registry.register(_FleetCollector(view))

    def count(self, effect: Count) -> None:
        """Raises KeyError for a counter that does not exist: its name belongs into this table first."""
        counter = self._counters[effect.name.removesuffix("_total")]
        (counter.labels(**dict(effect.labels)) if effect.labels else counter).inc()


class _FleetCollector(Collector):
    def __init__(self, view: Callable[[], StatusView]) -> None:
        self._view = view

    def describe(self) -> Iterator[Metric]:
        return iter(())  # registering must not read the fleet

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        good = sorted(
            (p for p in view.publications if p.state not in _UNFINISHED and p.targeted),
            key=lambda p: p.version,
            reverse=True,
        )
        yield _install_fractions(good[:VERSIONS_SHOWN])
        yield from _newest(good[0] if good else None)
        yield _relays(view)
        if view.training is not None:
            yield from training_metrics(view.training)


def _install_fractions(shown: list[PublicationView]) -> Metric:
    family = GaugeMetricFamily(
        "chappe_install_fraction",
        "Share of the targeted workers that got so far, for the current and the previous version.",
        labels=["version", "state"],
    )
    for publication in shown:
        for state in ("received", "verified", "installed"):
            family.add_metric([str(publication.version), state], getattr(publication.fractions, state))
    return family


def _newest(publication: PublicationView | None) -> Iterator[Metric]:
    seconds = GaugeMetricFamily(
        "chappe_broadcast_seconds",
        "Time from the publish call until the fraction was installed, for the newest version.",
        labels=["fraction"],
    )
    ratio = GaugeMetricFamily(
        "chappe_broadcast_floor_ratio", "Time until all had the newest version, over the floor that no topology beats."
    )
    chains = GaugeMetricFamily("chappe_chains", "Chains of the newest version.")
    payload = GaugeMetricFamily(
        "chappe_payload_bytes", "What travels to each worker for the newest version.", labels=["kind"]
    )
    density = GaugeMetricFamily(
        "chappe_delta_changed_ratio",
        "Changed elements of those with a base, in the newest version's delta to most workers.",
    )
    alarm = GaugeMetricFamily("chappe_delta_alarm", "1: something is unusual about it, see `chappe status`.")
    deltas = [one for one in (() if publication is None else publication.payloads) if one.compared_elements]
    if deltas:
        widest = max(deltas, key=lambda one: one.targeted)
        density.add_metric([], widest.changed_elements / widest.compared_elements)
        alarm.add_metric([], any(one.alarm for one in deltas))
    if publication is None:
        chains.add_metric([], 0)
    else:
        for fraction in _FRACTIONS:
            if fraction in publication.t_bcast:
                seconds.add_metric([fraction], publication.t_bcast[fraction])
        if "1.0" in publication.t_bcast and publication.floor_s:
            ratio.add_metric([], publication.t_bcast["1.0"] / publication.floor_s)
        chains.add_metric([], len(publication.chains))
        sizes = {one.kind: one.payload_bytes for one in sorted(publication.payloads, key=lambda one: one.targeted)}
        for kind, size in (sizes or {publication.kind: publication.payload_bytes}).items():
            payload.add_metric([kind], size)
    yield from (seconds, ratio, chains, payload, density, alarm)


def _relays(view: StatusView) -> Metric:
    family = GaugeMetricFamily("chappe_relays", "Relays by what they are doing.", labels=["state"])
    for state in RelayState:
        family.add_metric([state.value], sum(relay.state == state.value for relay in view.relays))
    return family
