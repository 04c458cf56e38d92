"""What a floor stands on, and that it is never above what a broadcast has shown."""

from __future__ import annotations

import pytest

from chappe.core import events as ev
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.floor import floor_of
from chappe.core.rates import Figure, Source
from chappe.core.status import status_view
from chappe.core.views import PublicationView

MB = 1_000_000
CONFIG = FleetConfig("run", assumed_bytes_per_s=MB)


@pytest.mark.parametrize(
    ("origin", "ups", "downs", "found"),
    [
        ((1, "assumed"), [(9, "declared")], [(9, "declared")], (8.0, "assumed")),
        ((9, "assumed"), [(9, "assumed")], [(1, "measured")], (8.0, "measured")),
        ((1, "assumed"), [(1, "declared")], [(1, "declared")], (8.0, "declared")),  # two bounds are the same
        ((2, "declared"), [(1, "declared"), (1, "assumed")], [(9, "measured")] * 3, (6.0, "assumed")),  # all together
    ],
)
def test_the_source_is_that_of_the_bound_that_decides(
    origin: tuple[int, str], ups: list[tuple[int, str]], downs: list[tuple[int, str]], found: tuple[float, str]
) -> None:
    def figure(rate: int, source: str) -> Figure:
        return Figure(rate * MB, Source(source))

    floor = floor_of(8 * MB, figure(*origin), [figure(*one) for one in ups], [figure(*one) for one in downs])
    assert (floor.seconds, floor.source.value) == found


class Broadcast:
    """One worker, 8 MB; by what is assumed it takes 8 s."""

    def __init__(self, uplink: float | None, downlink: float | None) -> None:
        self.fleet = Fleet(CONFIG)
        self.tell(ev.Hello("a", 1, ev.Role.RELAY, "ant", 1, "a:1", uplink, downlink), 0.0)
        self.tell(ev.Hello("o", 2, ev.Role.ORIGIN, "origin", 1, "o:1", uplink), 0.0)
        self.tell(ev.PublishRequested(1, "o", "obj", 7, 1.0, ev.Topology.CHAINS, 0, 8 * MB, 0.0), 10.0)
        self.tell(ev.Offered("o", 2, "obj", 7, "full", 8 * MB, 8 * MB, 8), 10.0)
        self.tell(ev.RootAnnounced("o", 2, "obj", "x:7"), 10.0)

    def tell(self, event: ev.Event, now: float) -> None:
        self.fleet.handle(event, now)

    def installed(self, now: float) -> PublicationView:
        holding = ev.Holding("obj", ev.ObjectState.INSTALLED, 7, "x:7", ((0, 8),), 8)
        self.tell(ev.HoldingChanged("a", 1, holding), now)
        return self.view(now)

    def view(self, now: float) -> PublicationView:
        return status_view(self.fleet.state, CONFIG, now).publications[0]


def test_over_links_that_were_only_assumed_it_is_what_was_shown_possible() -> None:
    broadcast = Broadcast(None, None)
    assert (broadcast.view(11.0).floor_s, broadcast.view(11.0).floor_source) == (8.0, "assumed")
    done = broadcast.installed(12.0)
    assert (done.t_bcast["1.0"], done.floor_s, done.floor_source) == (2.0, 2.0, "assumed")


def test_measured_rates_take_the_place_of_assumed_ones() -> None:
    broadcast = Broadcast(None, None)
    for worker_id, direction in (("a", "down"), ("a", "up"), ("o", "up")):
        links = broadcast.fleet.state.workers[worker_id].links
        estimate = links.down if direction == "down" else links.up
        estimate.settle(16 * MB, 11.0)
    done = broadcast.installed(12.0)
    assert (done.floor_s, done.floor_source) == (0.5, "measured")


def test_a_floor_of_declared_rates_stays_unless_less_was_shown() -> None:
    assert (Broadcast(2 * MB, 2 * MB).installed(15.0).floor_s, Broadcast(2 * MB, 2 * MB).view(15.0).floor_s) == (4, 4)
    done = Broadcast(2 * MB, 2 * MB).installed(13.0)
    assert (done.floor_s, done.floor_source) == (3.0, "declared")
