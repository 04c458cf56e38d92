"""Tables and pictures of the benches that measure without shaped links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import hopshow
from bench.pictures import draw
from bench.rivals import EXACT
from bench.sections import SECTIONS


def hop_run(kind: str, goodput: float, cpu: float, rss: int = 50_000_000) -> dict[str, Any]:
    return {
        "kind": kind,
        "goodput_gb_per_s": goodput,
        "middle_cpu_s_per_gb": cpu,
        "tail_cpu_s_per_gb": cpu / 2,
        "middle_rss_max_bytes": rss,
        "tail_rss_max_bytes": rss - 1,
    }


HOP = [
    hop_run(hopshow.BARE, 2.0, 0.5),
    hop_run("TCP", 1.0, 1.0),
    hop_run("TCP", 1.5, 1.25, rss=90_000_000),
    hop_run("TCP, TLS", 0.5, 3.0),
]
LAYOUT = [{"name": name, "mean": 1.01, "p90": 1.1, "largest": 2.0, "within_1_percent": 0.9} for name in ("a", "b")]
STRIPING = [
    {
        "fleet": "one slow",
        "bound_s": 1.0,
        "plain_s": 3.0,
        "striped_s": 1.1,
        "plain_to_bound": 3.0,
        "striped_to_bound": 1.1,
    }
]
DELTA = [
    {
        "data": f"synthetic {density}",
        "aim": density,
        "density": density,
        "delta": density / 2,
        "encode_gb_per_cpu_s": 1.0,
        "decode_gb_per_cpu_s": 4.0,
        "publisher_gb_per_s": 1.0,
        "publisher_scaling_2_threads": 1.2,
        "publisher_scaling_2_processes": 1.9,
        "machine_scaling_2": 1.95,
        **dict.fromkeys(EXACT, 2 * density),
    }
    for density in (0.05, 0.01)
]
REAL = {**DELTA[0], "data": "a real model", "aim": None}
REPORTS = {"hop": HOP, "layout": LAYOUT, "striping": STRIPING, "delta": [*DELTA, REAL]}


def test_a_carrier_s_row_is_the_median_of_its_runs_and_their_most_memory() -> None:
    bare, tcp, tls = hopshow.medians(HOP)
    assert (bare["runs"], tcp["runs"], tls["runs"]) == (1, 2, 1)
    assert (tcp["goodput_gb_per_s"], tcp["middle_cpu_s_per_gb"], tcp["rss_max_bytes"]) == (1.25, 1.125, 90_000_000)


def test_carriers_are_compared_with_bare_sockets_where_those_ran() -> None:
    columns, cells = hopshow.columns_and_cells(HOP)
    assert [len(line) for line in cells] == [len(columns)] * 3
    assert cells[2][:5] == ["TCP, TLS", "0.50", "0.25", "3.00", "6.00"]
    assert hopshow.columns_and_cells(HOP[1:])[1][0][:3] == ["TCP", "1.25", ""]


@pytest.mark.parametrize("name", REPORTS)
def test_every_bench_has_its_tables_and_its_picture(name: str, tmp_path: Path) -> None:
    report = {"name": name, "parameters": {}, "runs": REPORTS[name]}
    tables = SECTIONS[name].tables(report)
    assert tables
    for table in tables:
        assert all(len(line) == len(table.columns) for line in table.cells)
    assert draw(report, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_publishing_is_shown_in_milliseconds(tmp_path: Path) -> None:
    start = {"kind": "path", "size_bytes": 10**9, "runs": 2, "returned_s": 0.01}
    start |= {"first_chunk_s": 0.2, "first_chunk_s_low": 0.1, "first_chunk_s_high": 0.3}
    end = {"size_bytes": 10**9, "limit_bytes_per_s": 50e6, "runs": 2, "landing_s": 0.006, "unwritten_bytes": 10**6}
    end |= {"disk_s": 0.004, "ratio": 1.5, "ratio_low": 1.0, "ratio_high": 2.0, "second_pass": False}
    end |= {"steps": {"decide_s": 0.001, "durable_s": 0.003, "name_s": 0.0, "current_s": 0.0015, "tell_s": 0.0005}}
    end |= {"named_s": 0.005, "named_ratio": 1.2}
    report = {"name": "publish", "parameters": {}, "runs": [], "starts": [start], "ends": [end]}
    starts, ends = SECTIONS["publish"].tables(report)
    assert starts.cells == [["path", "1 GB", "0.010", "0.200", "0.100", "0.300", "2"]]
    steps = "1.0 + 3.0 + 0.0 + 1.5 + 0.5"
    disk = ["4.0", "1.50 (1.00 to 2.00)", "5.0 (1.20)"]
    assert ends.cells == [["1 GB", "400 Mbit/s", "6.0", "1 MB", steps, *disk, "none", "2"]]
    assert draw(report, tmp_path / "picture.png")
