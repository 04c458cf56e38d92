"""What is printed while a publication runs."""

from __future__ import annotations

import io

from rich.console import Console

from chappe.cli.progress import RELAYS_SHOWN_MAX, BarView, LineView, summary, targets
from chappe.v1 import coordinator_pb2 as pb


def publication(received: float = 0.0, installed: float = 0.0) -> pb.PublicationStatus:
    return pb.PublicationStatus(
        version=3,
        payload_bytes=90_900_000,
        targeted=2,
        floor_s=9.09,
        elapsed_s=4.5,
        installed_fraction=installed,
        fractions=pb.Fractions(received=received, verified=installed, installed=installed),
    )


def relays(count: int = 2, progress: float = 0.25) -> list[pb.RelayStatus]:
    return [
        pb.RelayStatus(name=f"w{i}", chain=0, position=i, progress=progress, state="receiving", parent="p")
        for i in reversed(range(count))
    ] + [pb.RelayStatus(name="spare", chain=-1, position=-1)]


def test_summary_names_what_matters() -> None:
    line = summary(publication(received=0.5))
    assert "version 3" in line
    assert "90.9 MB" in line
    assert "received 50% verified 0% installed 0%" in line
    assert "floor 9.1 s" in line
    assert "assumed" not in line
    guessed = publication()
    guessed.floor_source = "assumed"
    assert "floor 9.1 s (assumed rates)" in summary(guessed)
    lost = publication()
    lost.lost.append("w7")
    assert "lost w7" in summary(lost)
    assert "ALARM" not in line
    lost.payloads.add(kind="delta", alarm="no element changed")
    assert summary(lost).endswith("; ALARM: no element changed")


def test_targets_are_in_the_order_of_the_chains() -> None:
    assert [r.name for r in targets(relays(3))] == ["w0", "w1", "w2"]


def test_lines_come_at_most_once_a_second_unless_a_count_changes() -> None:
    lines: list[str] = []
    time_s = 0.0
    view = LineView("chains", lines.append, lambda: time_s)
    with view:
        view.show(publication(), relays())
        view.show(publication(), relays(progress=0.3))
        assert len(lines) == 1
        time_s = 0.4
        view.show(publication(received=0.5), relays())
        assert len(lines) == 2
        time_s = 1.4
        view.show(publication(received=0.5), relays(progress=0.8))
        assert len(lines) == 3
    assert lines[-1].endswith("held: w0 80% w1 80%")


def test_a_large_fleet_is_summed_up() -> None:
    lines: list[str] = []
    LineView("chains", lines.append, lambda: 0.0).show(publication(), relays(RELAYS_SHOWN_MAX + 1))
    assert lines[0].endswith("held: least 25%, median 25%, most 25%")


def test_who_has_no_room_is_said_at_once() -> None:
    lines: list[str] = []
    view = LineView("chains", lines.append, lambda: 0.0)
    view.show(publication(), relays())
    status = relays()
    status[0].state, status[0].reason = "disk_full", "22 MB short"
    view.show(publication(), status)
    assert lines[0].endswith("held: w0 25% w1 25%")
    assert lines[1].endswith("held: w0 25% w1 25%; w1 has a full disk: 22 MB short")
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=False).print(BarView(Console(), "x").render(publication(), status))
    assert out.getvalue().count("w1 has a full disk: 22 MB short") == 1


def test_bars_show_every_relay_with_its_place_and_state() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=False)
    status = relays()
    status[0].installed = 3
    console.print(BarView(console, "star").render(publication(), status))
    text = out.getvalue()
    assert "star" in text
    assert "chain 1.1" in text
    assert "chain 1.2" in text
    assert "installed" in text
    assert "receiving" in text
    assert "spare" not in text


def test_bars_leave_room_on_the_screen() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=False)
    with BarView(console, "t") as view:
        view.show(publication(), relays(RELAYS_SHOWN_MAX + 5))
    assert "and 5 more" in out.getvalue()
