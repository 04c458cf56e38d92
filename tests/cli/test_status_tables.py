"""What `chappe status` prints, at the widths that terminals have: nothing is cut, and nothing runs over."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chappe.cli.statustables import WIDE, StatusTables
from chappe.v1 import coordinator_pb2 as pb

NO_ROOM = (
    "no room for landing version 12: 29.4 MB short (50.3 MB needed, 21 MB free in /var/lib/relayd/objects/"
    "9b5561494bcf4fcdb8e1d28299822efa/applied). Free some space, the transfer then goes on by itself"
)
PLAIN = (
    "plain: nobody has declared or measured the links of the publisher, worker-2, worker-3; 1 chains for 3 unequal "
    "workers: T(1) 4.0 s expected"
)


def status() -> pb.Status:
    answer = pb.Status(run="run-1")
    answer.origins.add(name="origin-trainer-85c638", state="present", uplink_bytes_per_s=12.5e6, source="assumed")
    for number in (1, 2, 3):
        relay = answer.relays.add(
            name=f"worker-{number}",
            state="installed",
            rank=number,
            chain=0,
            position=number - 1,
            parent=f"worker-{number - 1}" if number > 1 else "origin-trainer-85c638",
            transport="tcp",
            progress=1.0,
            received=12,
            verified=12,
            installed=12,
            downlink_bytes_per_s=63e6,
            downlink_source="measured",
            downlink_age_s=144.0,
            uplink_bytes_per_s=5e6,
            uplink_source="declared",
            reason=f"rank {number} of 3 by hop rate 504 Mbit/s (measured)",
        )
    relay.state, relay.verified, relay.installed, relay.demoted, relay.reason = "disk_full", 11, 11, True, NO_ROOM
    answer.relays[1].reason = "the hook said [/bin/load] [red]no"  # as markup an error, and a colour
    newest = answer.publications.add(version=12, state="open", kind="full-compressed", payload_bytes=34_211_391)
    newest.fractions.received, newest.fractions.verified, newest.fractions.installed = 1.0, 2 / 3, 2 / 3
    newest.t_bcast["0.5"], newest.floor_s = 1299.5, 1312.0
    newest.root, newest.layout_reason, newest.payload_reason = "xxh3_128:" + "5ec2" * 8, PLAIN, "no worker has the base"
    newest.lost.append("worker-9")
    for object_id in "ab":
        newest.payloads.add(object_id=object_id, kind="delta", alarm="no element changed")
    return answer


def shown(width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(StatusTables(status()))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 120, WIDE - 1, WIDE, 160, 250])
def test_it_fits_and_nothing_is_cut(width: int) -> None:
    lines = shown(width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "…" not in text
    for words in (
        f"worker-3 {NO_ROOM}",
        "worker-2 the hook said [/bin/load] [red]no",
        f"version 12 lost: worker-9; ALARM: no element changed; {PLAIN}; no worker has the base",
    ):
        assert "".join(words.split()) in "".join(text.split())
    assert "worker-1 rank" not in text  # its rank has a column


@pytest.mark.parametrize("width", [80, 120, 160])
def test_words_take_few_lines(width: int) -> None:
    assert len(shown(width)) < 32


def test_a_long_end_of_a_hook_is_short_in_its_middle() -> None:
    answer = pb.Status(run="run-1")
    answer.relays.add(name="w", state="failed", reason="exit code 1: " + "x" * 2000 + " CUDA out of memory")
    out = io.StringIO()
    Console(file=out, width=120).print(StatusTables(answer))
    text = " ".join(out.getvalue().split())
    assert text.count("x") < 700
    assert "w exit code 1: x" in text
    assert "... x" in text.replace("x x", "xx")
    assert "CUDA out of memory" in text


def test_figures_are_apart_where_there_is_room() -> None:
    narrow, wide = "\n".join(shown(100)), "\n".join(shown(WIDE))
    assert "12/11/11" in narrow
    assert "100%/67%/67%" in narrow
    assert ("ago" in narrow, "ago" in wide) == (False, True)
    assert ("5ec25ec25ec2" in narrow, "5ec25ec25ec2" in wide) == (False, True)


def test_a_fleet_of_nobody() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(StatusTables(pb.Status(run="run-1")))
    assert out.getvalue().splitlines()[:2] == ["run run-1", "no origin"]
