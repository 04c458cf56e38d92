"""What `relayd` shows to Prometheus. Values that others keep are read when a scrape comes; nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chappe.core.events import ObjectState
from chappe.core.reasons import ParentLossReason
from chappe.hop.meter import GRPC, TCP

SHOWN_STATES = (ObjectState.RECEIVED, ObjectState.VERIFIED, ObjectState.INSTALLED)
PARENT_CHANGE_REASONS = ("reassigned", *(reason.value for reason in ParentLossReason))
_INSTALL_BUCKETS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of one moment. Rates are bytes per second."""

    received_bytes: int
    forwarded_bytes: int
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float
    backlog_bytes: int
    versions: Mapping[ObjectState, int]
    standby: bool
    hops: Mapping[str, Sequence[str]]
    """By direction, of each open stream what carries its payload."""


class RelaydMetrics:
    """`read` is called for each scrape, on the event loop's thread."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Live(read))
        self.verify_failures = Counter(
            "relayd_chunk_verify_failures",
            "Chunks that came with bytes that do not match their page.",
            registry=self.registry,
        )
        self.install_seconds = Histogram(
            "relayd_install_seconds",
            "From the start of the install hook (or the landing, with confirm) to its answer.",
            buckets=_INSTALL_BUCKETS_S,
            registry=self.registry,
        )
        self._parent_changes = Counter(
            "relayd_parent_changes", "Changes of the node fetched from.", ["reason"], registry=self.registry
        )
        for reason in PARENT_CHANGE_REASONS:
            self._parent_changes.labels(reason)

    def count(self, name: str, labels: Iterable[tuple[str, str]]) -> None:
        """Carry out a `Count` effect. Raises KeyError for a counter that is not there."""
        {"parent_changes_total": self._parent_changes}[name].labels(**dict(labels)).inc()


class _Live(Collector):
    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return []  # registering must not read

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        yield CounterMetricFamily(
            "relayd_received_bytes", "Bytes of objects that came from parents.", value=now.received_bytes
        )
        yield CounterMetricFamily(
            "relayd_forwarded_bytes", "Bytes of objects that went to children.", value=now.forwarded_bytes
        )
        hop = GaugeMetricFamily(
            "relayd_hop_bytes_per_second", "Goodput while there was something to send.", labels=["direction"]
        )
        hop.add_metric(["downlink"], now.downlink_bytes_per_s)
        hop.add_metric(["uplink"], now.uplink_bytes_per_s)
        yield hop
        transport = GaugeMetricFamily(
            "relayd_hop_transport", "Open streams, by what carries their payload.", labels=["direction", "transport"]
        )
        for direction, carriers in now.hops.items():
            for carrier in (GRPC, TCP):
                transport.add_metric([direction, carrier], carriers.count(carrier))
        yield transport
        yield GaugeMetricFamily(
            "relayd_backlog_bytes", "Held here, wanted by a connected child, and not sent yet.", value=now.backlog_bytes
        )
        yield GaugeMetricFamily(
            "relayd_standby", "1: this worker's rollouts are not wanted now.", value=float(now.standby)
        )
        versions = GaugeMetricFamily(
            "relayd_snapshot_version", "The newest version in this state, 0 for none.", labels=["state"]
        )
        for state in SHOWN_STATES:
            versions.add_metric([state.value], now.versions[state])
        yield versions
