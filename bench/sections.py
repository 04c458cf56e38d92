"""What the report says of each bench: a heading, a sentence, tables from its JSON. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import chainstar, deltalinks, deltashow, hopshow, loopshow, peers, publishshow, relaycpu, unequal, wanshow
from chappe.units import format_rate, format_size

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text."""

    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """`tables` takes the whole report."""

    title: str
    about: str
    tables: Callable[[Report], list[Table]]


def _chain_vs_star(report: Report) -> list[Table]:
    rows = report["summary"]
    notes = chainstar.growths(rows)
    return [Table(*chainstar.columns_and_cells(rows), "; ".join(notes) + "." if notes else "")]


def _delta_links(report: Report) -> list[Table]:
    rows = report["summary"]
    return [Table(*deltalinks.columns_and_cells(rows)), Table(*deltalinks.phase_columns_and_cells(rows))]


def _peers(report: Report) -> list[Table]:
    left_out = [f"{peers.BY_KEY[key].title}: left out, {why}." for key, why in report.get("skipped", {}).items()]
    rows = {row["system"]: row for row in report["summary"]}
    said = []
    ours = rows.get("chappe")
    if ours is not None and ours["t_1.0_to_sockets"] is not None:
        said.append(f"Chappe's T(1.0) is x {ours['t_1.0_to_sockets']['median']:.3f} of the bare-socket chains'.")
    if ours is not None and ours["t_1.0_to_floor"] is not None:
        for key, row in rows.items():
            if key not in ("floor", "bare-sockets", "chappe") and row["t_1.0_to_floor"] is not None:
                factors = [
                    f"{row[f't_{f}_to_floor']['median'] / ours[f't_{f}_to_floor']['median']:.2f}"
                    for f in ("0.5", "0.9", "1.0")
                ]
                said.append(f"{peers.BY_KEY[key].title} takes {' / '.join(factors)} times as long (0.5 / 0.9 / 1.0).")
    return [Table(*peers.columns_and_cells(report["summary"]), " ".join([*said, *left_out]))]


def _unequal(report: Report) -> list[Table]:
    rows = report["summary"]
    note = "Over all fleets, median / worst; the worst of a comparison is where the other one did best."
    return [Table(*unequal.columns_and_cells(rows)), Table(*unequal.overall_table(rows), note)]


def _faults(report: Report) -> list[Table]:
    columns = [
        "fault at half of the bytes",
        "receiving again",
        "silent for",
        "answer",
        "T(1.0)",
        "all others",
        "ECHO-2",
    ]
    cells = [
        [
            run.get("title") or "none",
            _seconds(run["receiving_again_s"]) if run.get("title") else "",
            _seconds(run["silence_s"]),
            f"{run['answer']} ({_seconds(run['answer_s'])})" if run.get("answer") else "",
            run["error"] or f"{_seconds(run['t_bcast_s'].get('1.0'))} {_times(run.get('t_bcast_ratio'))}",
            _times(run.get("t_others_ratio")) if run.get("title") else "",
            f"{run['echo_s']} s" if run.get("echo_s") else "",
        ]
        for run in report["runs"]
    ]
    return [Table(columns, cells)]


def _wan(report: Report) -> list[Table]:
    control = report["parameters"].get("congestion_control")
    note = f"Congestion control {control} on both." if control else ""
    return [Table(*wanshow.columns_and_cells(report["points"]), note)]


def _relay_cpu(report: Report) -> list[Table]:
    return [Table(*relaycpu.columns_and_cells(report["summary"]))]


def _hop(report: Report) -> list[Table]:
    rates = "; ".join(f"{name}: {statistics.median(v):.2f}" for name, v in report.get("rates", {}).items())
    found = Table(*hopshow.columns_and_cells(report["runs"]), rates and rates + ".")
    return [found, *_further(report, ("runs", "rates"))]


def _publish(report: Report) -> list[Table]:
    return [Table(*table) for table in publishshow.tables(report)]


def _layout(report: Report) -> list[Table]:
    columns = ["", "mean", "p90", "largest", "within 1 %"]
    cells = [
        [run["name"], *(f"{run[key]:.3f}" for key in ("mean", "p90", "largest")), f"{run['within_1_percent']:.1%}"]
        for run in report["runs"]
    ]
    return [Table(columns, cells)]


def _delta(report: Report) -> list[Table]:
    runs = report["runs"]
    others = [key for key in runs[0] if key in peers_of_delta(runs)]
    columns = ["data", "changed", "delta", "encode GB/CPU-s", "decode GB/CPU-s"]
    columns += ["decoding: two threads", "two processes alone", "copying: two threads", *others]
    cells = []
    for run in runs:
        line = [run["data"], f"{run['density']:.2%}", f"{run['delta']:.3%}"]
        line += [f"{run[f'{name}_gb_per_cpu_s']:.2f}" for name in ("encode", "decode")]
        scalings = (run.get(key) for key in ("decode_scaling_2", "decode_machine_scaling_2", "copy_scaling_2"))
        line += ["-" if scaling is None else f"x {scaling:.2f}" for scaling in scalings]
        cells.append([*line, *("-" if run.get(key) is None else f"{run[key]:.2%}" for key in others)])
    return [
        Table(columns, cells, "Shares of the full size."),
        *_delta_publishers([run for run in runs if "publisher_gb_per_s" in run]),
        *_delta_landings(report.get("landings", [])),
        *_further(report, ("runs", "landings")),
    ]


def _delta_publishers(runs: Sequence[dict[str, Any]]) -> list[Table]:
    if not runs:
        return []
    columns = ["data", "one core GB/s", "two threads", "two processes", "two processes alone over one"]
    cells = []
    for run in runs:
        scalings = (f"x {run[way]:.2f}" if way in run else "-" for way in deltashow.SCALINGS)
        cells.append([run["data"], f"{run['publisher_gb_per_s']:.2f}", *scalings])
    note = "What a publisher does for a delta: files read, proven, compared, packed, written. Alone: two "
    note += (
        "processes that read, compare and hash half of the files each, without a publisher: what the machine allows."
    )
    return [Table(columns, cells, note)]


def _delta_landings(rows: Sequence[dict[str, Any]]) -> list[Table]:
    if not rows:
        return []
    columns = ["store", "write and sync s", "all chunks at once s", "ratio", "at a link's rate s", "ratio", "memory MB"]
    cells = []
    for row in rows:
        line = [row["store"], f"{row['floor_s']:.2f}"]
        for name in ("at_once", "paced"):
            line += [f"{row[f'{name}_s']:.2f}", f"{row[f'{name}_to_floor']:.2f}"]
        cells.append([*line, f"{row['memory_bytes'] / 1e6:.0f}"])
    size, rate = rows[0]["snapshot_bytes"] / 1e9, rows[0]["link_bytes_per_s"] * 8 / 1e6
    note = f"Last chunk to landed, {size:.2f} GB, 1 % changed; the link's rate is {rate:.0f} Mbit/s. Medians."
    return [Table(columns, cells, note)]


def peers_of_delta(runs: Sequence[dict[str, Any]]) -> set[str]:
    """The other formats: every column that is a share, and that no speed and no name."""
    ours = {"data", "aim", "density", "delta", "bytes_per_changed", "chunks", "chunk_bytes_max"}
    return {key for run in runs for key in run if key not in ours and "_gb_per_" not in key and "_scaling" not in key}


def _further(report: Report, known: Sequence[str]) -> list[Table]:
    """Any other list of flat rows that a bench has left, as it is."""
    tables = []
    for key, rows in report.items():
        if key in known or not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            continue
        columns = [name for name, value in rows[0].items() if isinstance(value, str | int | float | None)]
        cells = [[_plain(row.get(name), name) for name in columns] for row in rows]
        tables.append(Table([_heading(name) for name in columns], cells))
    return tables


def _loop(report: Report) -> list[Table]:
    runs, found = report["runs"], []
    for columns, cells in (
        (loopshow.COLUMNS, loopshow.rows(runs)),
        (loopshow.REWARD_COLUMNS, loopshow.reward_rows(runs)),
    ):
        if cells:
            found.append(Table(columns, cells))
    if found and (line := loopshow.activation_line(runs)):
        found[-1] = Table(found[-1].columns, found[-1].cells, line)
    return found


def _scale(report: Report) -> list[Table]:
    """Of relays with links of their own: what each takes at its most over what it took idle."""
    runs = report["runs"]
    if report["parameters"].get("topology") != "striped":
        return _other(report)
    cells = [[_heading(key), *(_plain(run[key], key) for run in runs)] for key in runs[0] if key != "topology"]
    return [Table(["", *(run["topology"] for run in runs)], cells)]


def _other(report: Report) -> list[Table]:
    return _further(report, ("runs",)) or _further(report, ())


def _heading(name: str) -> str:
    for unit in ("_bytes_per_s", "_bytes"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _plain(value: Any, name: str = "") -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if name.endswith("_bytes_per_s") and not isinstance(value, str):
        return format_rate(value)
    if name.endswith("_bytes") and not isinstance(value, str):
        return format_size(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def _times(value: float | None) -> str:
    return "" if value is None else f"x {value:.3f}"


SECTIONS: dict[str, Section] = {
    "peers": Section(
        "Chappe and its peers",
        "The same payload over the same links in the same run. Times are over the floor of the same round: one bare-TCP"
        " stream over one such link. Chappe's clock runs from the `publish()` call, hashing included, until a version"
        " is verified, synced and current; everybody else's from when all programs are up until the last byte.",
        _peers,
    ),
    "chain-vs-star": Section(
        "Chains against a star",
        "The same daemons, flags and verification; only `--topology` differs. The curves are the closed forms of"
        " `chappe.planning.broadcast`, with the payload's share of a link as the floor measured it.",
        _chain_vs_star,
    ),
    "unequal": Section(
        "Unequal links",
        "Plain chains are as good as their slowest inner uplink. The bound, max(F/B0, F/d, N F/(B0 + sum u)), is of"
        " whole link rates, of which headers take 4.6 % at an MTU of 1500.",
        _unequal,
    ),
    "faults": Section("Faults", "One fault at half of the bytes, beside undisturbed broadcasts.", _faults),
    "wan": Section(
        "Long and lossy links",
        "One hop beside bare TCP on the same link, windows alternated. x N: N connections (`--streams`).",
        _wan,
    ),
    "loop": Section(
        "A running loop, predicted and measured",
        "A learner (GRPO, about a million parameters) and rollout workers behind shaped links; every version travels"
        " through Chappe. T_train, T_bcast and mu are measured before each run; the prediction is on record before it"
        " begins. Rates and the step are paced: two cores are no fleet. Bubble: the share of time in which the learner"
        " waits. S: steps that every rollout is old.",
        _loop,
    ),
    "publish": Section(
        "Publishing",
        "To the first chunk on the wire, and from the last one to installed, without an install hook. The disk alone: a"
        " plain program that writes a copy at the same pace, then fsync, rename, fsync of the directory.",
        _publish,
    ),
    "relay-cpu": Section(
        "CPU of a relay at a link's rate",
        "Trainer, relay, last worker over equal shaped links; of the relay in the middle, until all have the payload."
        " Bare sockets neither hash nor verify. Ratios are of the same round.",
        _relay_cpu,
    ),
    "hop": Section(
        "The machine's own limit",
        "Origin, relay, relay on loopback, no shaped links. Bare sockets hash and store the same bytes.",
        _hop,
    ),
    "scale": Section("Scale", "Many relays, few processes, the real services.", _scale),
    "layout": Section("Layouts", "Planned chains over the best possible ones, and over the physical bound.", _layout),
    "striping": Section(
        "Stripes, calculated",
        "Striped plans played as a fluid. `one child` is the bound for one child in each stripe; it and the physical"
        " bound are of whole link rates, the times count headers, ACKs and the pipelines' fill.",
        _other,
    ),
    "adapting": Section(
        "Stripes over links that are not what was declared, calculated",
        "The real fleet machine over a fluid: as planned (static), with segments moved to where they end sooner"
        " (moving), and with the rest laid out anew for the links as they are seen, too (adaptive). `exact`: as"
        " declared; `half`: the best uplink carries half of it; `noise`: each carries between 0.6 and 1.2 of it.",
        _other,
    ),
    "delta-links": Section(
        "A small delta over shaped links",
        "To the heads of the chains it takes as long as it takes the publisher to compare, encode and hash it, too;"
        " what the chains add behind them is what relaying costs.",
        _delta_links,
    ),
    "delta": Section("Deltas", "The codec's payload and speed on one core, beside other formats.", _delta),
}
OTHER = Section("", "", _other)
