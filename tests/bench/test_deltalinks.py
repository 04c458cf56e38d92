"""The figures of `bench delta-links` from runs as it makes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bench import phases
from bench.deltalinks import columns_and_cells, phase_columns_and_cells, summary
from bench.late_relayd import LateArriving
from chappe.errors import StoreError
from chappe.hop import ahead


def run(version: int, received_s: float, heads_s: float) -> dict[str, Any]:
    return {
        "bw": 50e6,
        "workers": 8,
        "version": version,
        "payload_bytes": 800_000,
        "chains": [["w1", "w2"], ["w3"]],
        "first_byte_s": 0.5,
        "heads_s": heads_s,
        "received_s": received_s,
        "wire_s": 0.128,
        "to_wire": received_s / 0.128,
        "to_framed": received_s / 0.134,
        "chains_to_wire": 1 + (received_s - heads_s) / 0.128,
        "installed_s": 1.0,
        "relays_cpu_s": 2.0,
        "phases": {"offered": [-0.02, -0.02], "received": [received_s - 0.1, received_s]},
    }


def test_medians_of_a_fleet_and_the_spread() -> None:
    rows = summary([run(2, 0.256, 0.2), run(3, 0.128, 0.1), run(4, 0.192, 0.15)])
    assert len(rows) == 1
    assert rows[0]["versions"] == 3
    assert rows[0]["to_wire"] == 1.5
    assert rows[0]["to_wire_spread"] == [1.0, 2.0]
    columns, cells = columns_and_cells(rows)
    assert [len(line) for line in cells] == [len(columns)]
    assert "1.500 (1.000 - 2.000)" in cells[0]
    columns, cells = phase_columns_and_cells(rows)
    assert [len(line) for line in cells] == [len(columns)]
    assert dict(zip(columns, cells[0], strict=True))["offered"] == "-20"
    assert dict(zip(columns, cells[0], strict=True))["received"] == "92 - 192"
    assert dict(zip(columns, cells[0], strict=True))["landed"] == "-"


def test_each_link_is_a_row() -> None:
    other = run(2, 0.3, 0.2) | {"bw": 20e6}
    assert [row["bw"] for row in summary([run(2, 0.2, 0.1), other])] == [50e6, 20e6]


def test_phases_are_the_first_and_the_last_of_what_was_said() -> None:
    def line(second: float, event: str, reason: str = "") -> dict[str, Any]:
        return {"timestamp": f"2026-11-30T12:00:{second:06.3f}Z", "event": event, "reason": reason}

    lines = {
        "publish": [line(1, "version 2: object 7 is offered, and being encoded"), line(1, "joined run r")],
        "w1": [line(0, "fetch_opened"), line(1.5, "fetch_opened"), line(2, "fetch_ended", "complete")],
        "w2": [line(1.25, "fetch_opened"), line(2, "fetch_ended", "broken"), line(3, "fetch_ended", "complete")],
    }
    zero_s = phases.time_s(line(1.25, ""))
    found = phases.phases(lines, phases.time_s(line(0.5, "")), zero_s)
    assert found == {"offered": [-0.25, -0.25], "asked for": [0.0, 0.25], "received": [0.75, 1.75]}
    assert phases.medians([found, {"received": [1.25, 2.75]}]) == {"received": [1.0, 2.25]}
    assert phases.medians([]) == {}


def test_late_relays_read_nothing_before_all_is_here_and_a_moment_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], [0]

    class Counted(LateArriving):
        def urgent(self) -> bool:
            asked[0] += 1
            if asked[0] == 3:  # has been waited for twice, with what is asked for here
                self.advance(50, 50)
            if asked[0] == 5:
                now[0] += ahead.FORWARD_S
            return super().urgent()

    monkeypatch.setattr(ahead, "boot_now", lambda: now[0])
    arriving = Counted(50)
    arriving.advance(20, 50)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(arriving.wait, 10).result(timeout=60) == 10
    assert asked[0] == 5
    arriving = LateArriving(50)
    arriving.stop()
    with pytest.raises(StoreError):
        arriving.wait(10)
