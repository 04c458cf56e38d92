"""What a hop should carry, by what is known of its two links."""

from __future__ import annotations

import pytest

from chappe.core.events import Role
from chappe.core.rates import hop_rate
from chappe.core.workers import Worker

ASSUMED = 12.5e6


def worker(up: float | None, down: float | None) -> Worker:
    return Worker("id", Role.RELAY, "w", 1, "h:1", uplink_bytes_per_s=up, downlink_bytes_per_s=down)


@pytest.mark.parametrize(
    ("up", "streams", "down", "carries"),
    [
        (80e6, 8, 30e6, 10e6),  # the parent's part
        (80e6, 1, 30e6, 30e6),  # the child's link
        (None, 1, 3e6, 3e6),  # whatever the parent's uplink is, no more than that
        (None, 8, 3e6, 0.0),  # an eighth of what is assumed: no figure at all
        (None, 1, None, 0.0),
        (80e6, 1, None, 0.0),
    ],
)
def test_only_what_is_known_counts(up: float | None, streams: int, down: float | None, carries: float) -> None:
    assert hop_rate(worker(up, None), worker(None, down), streams, ASSUMED, 0.0) == carries
