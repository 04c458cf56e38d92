"""At the learner: which trajectories are young enough to be learned from, and what became of all of them.

    admission.advance(v_t)              after each training step
    admission.admit(trajectory)         when it is taken for one: v >= v_t - S ? admitted : discarded (ECHO-2)

Judge a trajectory when it is used, not when it comes: a fleet that outruns the learner fills the buffer, what waits
there ages, and the falling share of admitted ones is how that shows. All that were judged are counted, by worker and
version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chappe.errors import UsageError
from chappe.planning.errors import at_least
from chappe.planning.staleness import admits
from chappe.rollouts import Trajectory
from chappe.trajectory_metric import trajectories_metric

OLDER = 0
"""Stands for all versions that are too old to be counted one by one."""


class LearnerPort(Protocol):
    """Whom to tell how far the learner is: a Publisher."""

    def learner(self, version: int, *, admitted: int = 0, discarded: int = 0) -> None: ...


@dataclass(frozen=True, slots=True)
class Counts:
    """`generated` is what was judged: admitted and discarded. Duplicates are not among them."""

    admitted: int = 0
    discarded: int = 0
    duplicates: int = 0

    @property
    def generated(self) -> int:
        return self.admitted + self.discarded

    @property
    def admitted_share(self) -> float:
        """Admitted over generated; 1 before anything was judged."""
        return self.admitted / self.generated if self.generated else 1.0

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.admitted + other.admitted, self.discarded + other.discarded, self.duplicates + other.duplicates
        )


class Admission:
    """Safe to share between threads.

    - `staleness`: S. A trajectory of version v is admitted while v >= v_t - S.
    - `publisher`: is told how far the learner is, for the coordinator (asynchronous mode, `chappe status`, metrics).
    - `registry`: where the counts are shown to Prometheus.
    """

    def __init__(
        self,
        staleness: int,
        *,
        learner_version: int = 0,
        publisher: LearnerPort | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.staleness = at_least("staleness", staleness, 0)
        self._publisher = publisher
        self._lock = threading.Lock()
        self._learner_version = at_least("learner_version", learner_version, 0)
        self._counts: dict[tuple[str, int], Counts] = {}
        self._seen: dict[int, set[tuple[str, int]]] = {}  # by version: those that could still be admitted again
        if registry is not None:
            registry.register(_Shown(self))

    @property
    def learner_version(self) -> int:
        """v_t: the newest that `advance` was told."""
        return self._learner_version

    def advance(self, learner_version: int) -> None:
        """The learner has this version now. One that is lower is taken as it is: a restored checkpoint."""
        if learner_version < 0:
            raise UsageError(f"learner_version={learner_version} is not a version")
        with self._lock:
            self._learner_version = learner_version
            self._forget()
            totals = self._sum(self._counts.values())
        if self._publisher is not None:
            self._publisher.learner(learner_version, admitted=totals.admitted, discarded=totals.discarded)

    def admit(self, trajectory: Trajectory) -> bool:
        """Whether to learn from it; counts it. Of one that came twice the second is refused."""
        with self._lock:
            version, name = trajectory.version, (trajectory.session, trajectory.sequence)
            young = admits(version, self._learner_version, self.staleness)
            if young:
                seen = self._seen.setdefault(version, set())
                if name in seen:
                    self._add(trajectory, Counts(duplicates=1))
                    return False
                seen.add(name)
            self._add(trajectory, Counts(admitted=1) if young else Counts(discarded=1))
            return young

    def sift(self, trajectories: Iterable[Trajectory]) -> list[Trajectory]:
        """Those that are admitted, in their order."""
        return [trajectory for trajectory in trajectories if self.admit(trajectory)]

    # ---- counts ----------------------------------------------------------------------------------------------------

    def totals(self) -> Counts:
        with self._lock:
            return self._sum(self._counts.values())

    def by_worker(self) -> dict[str, Counts]:
        found: dict[str, Counts] = {}
        for (worker, _), counts in self.counts().items():
            found[worker] = found.get(worker, Counts()).plus(counts)
        return found

    def by_version(self) -> dict[int, Counts]:
        """Of the versions that may still be admitted, and the one before; `OLDER` (0) for all before those."""
        found: dict[int, Counts] = {}
        for (_, version), counts in self.counts().items():
            found[version] = found.get(version, Counts()).plus(counts)
        return found

    def counts(self) -> dict[tuple[str, int], Counts]:
        """By worker and version, as far back as `by_version`."""
        with self._lock:
            return dict(self._counts)

    @staticmethod
    def _sum(all_counts: Iterable[Counts]) -> Counts:
        total = Counts()
        for counts in all_counts:
            total = total.plus(counts)
        return total

    @property
    def _oldest(self) -> int:
        return self._learner_version - self.staleness - 1

    def _add(self, trajectory: Trajectory, one: Counts) -> None:
        version = trajectory.version if trajectory.version >= self._oldest else OLDER
        key = (trajectory.worker, version)
        self._counts[key] = self._counts.get(key, Counts()).plus(one)

    def _forget(self) -> None:
        for version in [v for v in self._seen if v < self._oldest]:
            del self._seen[version]
        for worker, version in [key for key in self._counts if OLDER != key[1] < self._oldest]:
            old = (worker, OLDER)
            self._counts[old] = self._counts.get(old, Counts()).plus(self._counts.pop((worker, version)))


class _Shown(Collector):
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        totals = self._admission.totals()
        yield trajectories_metric(totals.admitted, totals.discarded)
        workers = CounterMetricFamily(
            "chappe_worker_trajectories", "Trajectories by who made them.", labels=["worker", "admitted"]
        )
        for worker, counts in self._admission.by_worker().items():
            workers.add_metric([worker, "true"], counts.admitted)
            workers.add_metric([worker, "false"], counts.discarded)
        yield workers
        versions = GaugeMetricFamily(
            "chappe_version_trajectories",
            "Trajectories by the version that made them; 0 for all that are too old to be shown.",
            labels=["version", "admitted"],
        )
        for version, counts in self._admission.by_version().items():
            versions.add_metric([str(version), "true"], counts.admitted)
            versions.add_metric([str(version), "false"], counts.discarded)
        yield versions
