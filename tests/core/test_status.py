from __future__ import annotations

from chappe.core import events as ev
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.status import status_view
from chappe.core.views import ChainView, RelayState

CONFIG = FleetConfig("run", assumed_bytes_per_s=1e6)


def fleet() -> Fleet:
    fleet = Fleet(CONFIG)
    fleet.handle(ev.Hello("b", 1, ev.Role.RELAY, "bee", 1, "b:1", 4e6, 4e6), 0.0)
    fleet.handle(ev.Hello("a", 2, ev.Role.RELAY, "ant", 1, "a:1"), 0.0)
    fleet.handle(ev.Hello("o", 9, ev.Role.ORIGIN, "origin", 1, "o:1", 1e6), 0.0)
    return fleet


def test_relays_before_anything_is_published() -> None:
    view = status_view(fleet().state, CONFIG, 1.0)
    assert view.publications == ()
    assert [(r.name, r.state, r.chain, r.position, r.parent, r.rank, r.source) for r in view.relays] == [
        ("ant", "idle", -1, -1, "", 2, "assumed"),
        ("bee", "idle", -1, -1, "", 1, "declared"),
    ]
    assert view.relays[0].uplink_bytes_per_s == 1e6


def test_a_publication_on_its_way() -> None:
    machine = fleet()
    machine.handle(ev.PublishRequested(1, "o", "obj", 7, 1.0, ev.Topology.CHAINS, 0, 100, 2.0), 10.0)
    machine.handle(ev.Offered("o", 9, "obj", 7, "full", 8_000_000, 8_000_000, 8), 11.0)
    machine.handle(ev.RootAnnounced("o", 9, "obj", "x:7"), 12.0)
    holding = ev.Holding("obj", ev.ObjectState.INSTALLED, 7, "x:7", ((0, 8),), 8)
    machine.handle(ev.HoldingChanged("b", 1, holding), 20.0)
    machine.handle(ev.HoldingChanged("a", 2, ev.Holding("obj", ev.ObjectState.RECEIVING, chunks=((0, 2),))), 20.0)
    view = status_view(machine.state, CONFIG, 30.0)
    publication = view.publications[0]
    assert publication.chains == (ChainView(("bee", "ant")),)
    assert publication.t_bcast == {"0.5": 12.0}  # from the publish() call, two seconds before it was asked for here
    assert publication.elapsed_s == 22.0
    assert publication.floor_s == 8.0
    assert (publication.targeted, publication.installed, publication.installed_fraction) == (2, 1, 0.5)
    assert (publication.fractions.received, publication.fractions.verified) == (0.5, 0.5)
    ant, bee = view.relays
    assert (bee.state, bee.parent, bee.chain, bee.position, bee.installed, bee.progress) == (
        "installed",
        "origin",
        0,
        0,
        7,
        1.0,
    )
    assert (ant.state, ant.parent, ant.chain, ant.position, ant.progress) == ("receiving", "bee", 0, 1, 0.25)
    assert ant.reason == "rank 2 of 2 by hop rate 8 Mbit/s (assumed)"


def test_a_relay_without_room_says_how_much_it_lacks() -> None:
    machine = fleet()
    machine.handle(ev.PublishRequested(1, "o", "obj", 7, 1.0, ev.Topology.CHAINS, 0, 100, 2.0), 10.0)
    machine.handle(ev.Offered("o", 9, "obj", 7, "full", 8_000_000, 8_000_000, 8), 11.0)
    short = ev.Holding("obj", ev.ObjectState.DISK_FULL, reason="3 MB short")
    machine.handle(ev.HoldingChanged("a", 2, short), 20.0)
    ant, bee = status_view(machine.state, CONFIG, 30.0).relays
    assert (ant.state, ant.reason) == (RelayState.DISK_FULL, "3 MB short")
    assert bee.reason.startswith("rank 1")
    machine.handle(ev.HoldingChanged("a", 2, ev.Holding("obj", ev.ObjectState.RECEIVING, chunks=((0, 2),))), 40.0)
    assert status_view(machine.state, CONFIG, 41.0).relays[0].reason.startswith("rank 2")


def test_what_carries_each_hop_is_what_its_child_says() -> None:
    machine = fleet()
    machine.handle(ev.PublishRequested(1, "o", "obj", 7, 1.0, ev.Topology.CHAINS, 0, 100, 2.0), 10.0)
    machine.handle(ev.Offered("o", 9, "obj", 7, "full", 8_000_000, 8_000_000, 8), 11.0)

    def transports() -> list[tuple[str, str, str]]:
        return [(r.name, r.parent, r.transport) for r in status_view(machine.state, CONFIG, 12.0).relays]

    def says(worker_id: str, session: int, peer: str, *, sending: bool, tcp: bool) -> None:
        sample = ev.LinkSample(peer, sending, 1e6, 1.0, 1, 1_000_000, tcp)
        machine.handle(ev.LinksMeasured(worker_id, session, (sample,)), 12.0)

    assert transports() == [("ant", "bee", ""), ("bee", "origin", "")]
    says("b", 1, "o", sending=False, tcp=True)
    says("b", 1, "a", sending=True, tcp=True)  # the parent's word is not asked for
    assert transports() == [("ant", "bee", ""), ("bee", "origin", "tcp")]
    says("a", 2, "b", sending=False, tcp=False)
    says("a", 2, "o", sending=False, tcp=True)  # there is no such hop
    assert transports() == [("ant", "bee", "grpc"), ("bee", "origin", "tcp")]
    machine.handle(ev.Hello("b", 3, ev.Role.RELAY, "bee", 2, "b:1", 4e6, 4e6), 13.0)
    assert transports() == [("ant", "bee", "grpc"), ("bee", "origin", "")]


def test_absent_then_lost() -> None:
    machine = fleet()
    machine.handle(ev.SessionLost("a", 2), 1.0)
    assert status_view(machine.state, CONFIG, 1.0).relays[0].state == RelayState.ABSENT
    for tick in (2.0, 5.0, 6.0):
        machine.handle(ev.Tick(), tick)
    assert status_view(machine.state, CONFIG, 6.0).relays[0].state == RelayState.LOST
