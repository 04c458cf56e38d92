from __future__ import annotations

import pytest

from chappe.core.alarms import alarm_of


@pytest.mark.parametrize(
    ("changed", "compared", "payload_bytes", "before", "said"),
    [
        (10_000_000, 1_000_000_000, 13_000_000, 0.01, ""),
        (0, 1_000_000_000, 40_000, 0.01, "no element changed"),
        (0, 0, 40_000, None, ""),  # a new model: nothing has a base
        (40_000_000, 1_000_000_000, 50_000_000, 0.01, "4.00% of the elements changed, 1.00% the time before"),
        (2_000_000, 1_000_000_000, 2_600_000, 0.01, "0.20% of the elements changed, 1.00% the time before"),
        (29_000_000, 1_000_000_000, 30_000_000, 0.01, ""),
        (40_000_000, 1_000_000_000, 50_000_000, None, ""),
        (10_000_000, 1_000_000_000, 31_000_000, 0.01, "3.10 bytes for each changed element, not 0.7 to 3.0"),
        (10_000_000, 1_000_000_000, 6_000_000, 0.01, "0.60 bytes for each changed element, not 0.7 to 3.0"),
        (10_000, 1_000_000, 100_000, 0.01, ""),  # small: the header weighs more
    ],
)
def test_what_is_said(changed: int, compared: int, payload_bytes: int, before: float | None, said: str) -> None:
    assert alarm_of(changed, compared, payload_bytes, before) == said
