"""Whether one hop carries what it should: a mean over the last busy seconds, that no hiccup decides.

    sample ─┬─ never busy: it kept up with its source ──────▶ the run is over
            ├─ at least CALM_SHARE of what is expected ─────▶ the run is over, the usual rate follows
            └─ below ─▶ run: SLOW_S busy seconds, their mean and MOST of them low ──▶ slow

A pause of a process shows as one long sample with next to nothing in it, and the burst after it ends the run: a sample
counts for COUNTED_S at most. Knows one hop; what to do about a slow one is decided in `slow`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chappe.core.links import Estimate

SLOW_SHARE = 0.6  # of the expected rate: half of it, and the noise of measuring
CALM_SHARE = 0.75
CLEAR_SHARE = 0.55
SLOW_S = 2.0  # of a clear case, and UNCLEAR_S of any other
UNCLEAR_S = 3.0
COUNTED_S = 0.5  # of one sample: reports of a hop that has become slow come as often
MOST = 0.7
BURST_SHARE = 1.25  # of the usual rate: what has piled up in a pause comes at once, and says nothing of the link
COMMON_S = 6.0  # when others are slow at the same time: it may be the network, or the host that they share
RUN_MAX = 32  # samples: more than COMMON_S takes
USUAL_S = 3.0  # a hop that has run for less has no usual rate yet
CONTRADICTED_SHARE = 0.5  # of a run: the ends' reports are not cut at the same moments


@dataclass(frozen=True, slots=True)
class Slowness:
    """A run that is long enough to speak of."""

    bytes_per_s: float
    expected_bytes_per_s: float
    contradicted: bool  # the sender says much more


def _run() -> deque[tuple[float, float, bool]]:
    return deque(maxlen=RUN_MAX)


@dataclass(slots=True)
class Evidence:
    """Of the hop from `parent`; a child that moves is another hop."""

    parent: str
    usual: Estimate = field(default_factory=Estimate)
    heard_s: float = 0.0
    slow: bool = False
    """The last sample alone: such a one says nothing of what the links can carry."""
    _run: deque[tuple[float, float, bool]] = field(default_factory=_run)  # counted_s, bytes/s, contradicted

    @property
    def low(self) -> bool:
        """It carried little when it was heard of last."""
        return bool(self._run)

    def expected_bytes_per_s(self, known: float | None) -> float:
        """What it usually carries or what its links are known to carry, whichever is more; 0 for no idea."""
        return max(self.usual.bytes_per_s if self.usual.weight_s >= USUAL_S else 0.0, known or 0.0)

    def take(self, bytes_per_s: float, busy_s: float, known: float | None, contradicted: bool, now: float) -> None:
        """One sample. `known` is the least of what is known of the two links, None where one is only assumed."""
        self.heard_s = now
        expected = self.expected_bytes_per_s(known)
        self.slow = busy_s > 0 and bytes_per_s < SLOW_SHARE * expected
        if not self.slow:
            usual = self.usual.bytes_per_s
            rate = min(bytes_per_s, BURST_SHARE * usual) if self.usual.weight_s >= USUAL_S else bytes_per_s
            self.usual.exact(rate, busy_s, now)
        if busy_s <= 0 or bytes_per_s >= CALM_SHARE * expected:
            self._run.clear()
            return
        self._run.append((min(busy_s, COUNTED_S), bytes_per_s, contradicted))

    def calm(self) -> None:
        """Start from nothing."""
        self._run.clear()

    def slowness(self, known: float | None, needed_s: float) -> Slowness | None:
        """The last `needed_s` busy seconds, when they are slow and enough."""
        expected = self.expected_bytes_per_s(known)
        counted_s = size = slow_s = contradicted_s = 0.0
        for weight_s, rate, contradicted in reversed(self._run):
            counted_s, size = counted_s + weight_s, size + rate * weight_s
            slow_s += weight_s * (rate < SLOW_SHARE * expected)
            contradicted_s += weight_s * contradicted
            if counted_s >= needed_s - 1e-9:
                break
        else:
            return None
        mean = size / counted_s
        share = CLEAR_SHARE if counted_s < UNCLEAR_S else SLOW_SHARE
        if mean >= share * expected or slow_s < MOST * counted_s:
            return None
        return Slowness(mean, expected, contradicted_s > CONTRADICTED_SHARE * counted_s)
