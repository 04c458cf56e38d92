"""The figures of `bench delta-links` from runs as it makes them."""

from __future__ import annotations

from typing import Any

from bench.deltalinks import columns_and_cells, summary


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


def test_each_link_is_a_row() -> None:
    other = run(2, 0.3, 0.2) | {"bw": 20e6}
    assert [row["bw"] for row in summary([run(2, 0.2, 0.1), other])] == [50e6, 20e6]
