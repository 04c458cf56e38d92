"""A relay with several stripes: a parent and a fetch for each, one ledger, and what happens when they differ in pace.

Each row of the list is a test:

  two parents, one object          a fetch for each stripe, with the map
  a stripe is complete             its fetch is not opened again, the others go on
  a complete stripe loses a chunk  only it is fetched again
  one parent of several dies       its stripe takes its fallback, the others do not notice
  restart in the middle            only stripes that lack something are fetched
  the map changes (c9)             what is on its way is taken, then all of them are fetched anew
  stripes become a plain chain     what is left is one fetch
  the disk is full                 all stop, and go on together
"""

from __future__ import annotations

import pytest
from relay_rig import ROOT_A, A, Rig, of, source, target

from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    ChunksDropped,
    CloseFetch,
    DrainFetch,
    EdgeOrder,
    FetchConnected,
    FetchEnded,
    LandFailed,
    LocalFault,
    OpenFetch,
    Progress,
    ReportLost,
    ResetObject,
    Restored,
)
from chappe.core.stripemap import StripeMap

TWO = StripeMap((1, 1))  # even chunks are stripe 0's, odd ones stripe 1's
THREE = StripeMap((1, 1, 1))


def edge(stripe: int, parent: str, *fallbacks: str, stripes: StripeMap = TWO, epoch: int = 1) -> EdgeOrder:
    others = tuple(source(name) for name in fallbacks)
    return EdgeOrder(A, stripe, epoch, source(parent), others, stripes=stripes)


def opened(rig: Rig, *effects: object) -> dict[int, OpenFetch]:
    return {e.stripe: e for e in effects if isinstance(e, OpenFetch)}


def started(**options: object) -> tuple[Rig, dict[int, OpenFetch]]:
    rig = Rig(**options)  # type: ignore[arg-type]
    fetches = opened(rig, *rig.assign(target(), edge(0, "p", "q"), edge(1, "r", "s")))
    for fetch in fetches.values():
        rig.do(FetchConnected(fetch.fetch))
    return rig, fetches


def test_each_stripe_has_a_fetch_of_its_own_with_the_map() -> None:
    rig, fetches = started()
    assert {s: f.source.peer.name for s, f in fetches.items()} == {0: "p", 1: "r"}
    assert all(f.stripes == TWO for f in fetches.values())
    assert {(e.stripe, e.parent) for e in rig.machine.edges()} == {(0, "id-p"), (1, "id-r")}


def test_a_complete_stripe_is_left_alone_while_the_others_go_on() -> None:
    rig, fetches = started()
    rig.do(Progress(A, ((0, 1), (2, 3)), 4))
    assert rig.open.keys() == {f.fetch for f in fetches.values()}  # its parent says so next
    effects = rig.do(FetchEnded(fetches[0].fetch, None, progressed=True))
    assert not opened(rig, *effects)
    assert rig.open.keys() == {fetches[1].fetch}
    rig.do(Progress(A, ((0, 3),), 4), after=10.0)
    assert rig.open.keys() == {fetches[1].fetch}
    rig.do(Progress(A, ((0, 4),), 4))
    rig.do(FetchEnded(fetches[1].fetch, None, progressed=True))
    assert not rig.open


def test_a_chunk_that_rots_is_fetched_in_its_own_stripe() -> None:
    rig, fetches = started()
    rig.do(Progress(A, ((0, 3),), 4))
    rig.do(FetchEnded(fetches[0].fetch, None, progressed=True))
    effects = rig.do(ChunksDropped(A, ((0, 2),)))  # of stripe 0, whose fetch is over: that of stripe 1 goes on
    assert opened(rig, *effects).keys() == {0}
    effects = rig.do(ChunksDropped(A, ((0, 1),)))
    assert of(effects, CloseFetch) == [CloseFetch(fetches[1].fetch)]  # it asked before, as for a plain chain
    assert opened(rig, *effects).keys() == {1}


def test_a_dead_parent_costs_its_stripe_only() -> None:
    rig, fetches = started()
    effects = rig.do(FetchEnded(fetches[1].fetch, ParentLossReason.STALLED))
    assert [e.edge.stripe for e in effects if isinstance(e, ReportLost)] == [1]
    assert fetches[0].fetch in rig.open
    again = opened(rig, *rig.wait())
    assert {s: f.source.peer.name for s, f in again.items()} == {1: "s"}


def test_after_a_restart_only_what_lacks_something_is_fetched() -> None:
    _, fetches = started(restored=[Restored(A, chunks=((0, 1), (2, 3)), chunks_total=4)])
    assert fetches.keys() == {1}


def test_c9_another_map_means_other_chunks_once_what_is_on_its_way_has_come() -> None:
    rig, fetches = started()
    effects = rig.assign(target(), *(edge(s, "p", stripes=THREE, epoch=2) for s in range(3)))
    assert {e.fetch for e in effects if isinstance(e, DrainFetch)} == {f.fetch for f in fetches.values()}
    assert not opened(rig, *effects)
    assert not opened(rig, *rig.do(FetchEnded(fetches[0].fetch, None, progressed=True)))
    effects = rig.do(FetchEnded(fetches[1].fetch, ParentLossReason.EVICTED))
    assert {s: f.stripes for s, f in opened(rig, *effects).items()} == dict.fromkeys(range(3), THREE)
    assert not [e for e in effects if isinstance(e, ReportLost)]


def test_a_stripe_that_there_is_no_more_is_drained_too() -> None:
    rig = Rig()
    fetches = opened(rig, *rig.assign(target(), *(edge(s, "p", stripes=THREE) for s in range(3))))
    for fetch in fetches.values():
        rig.do(FetchConnected(fetch.fetch))
    effects = rig.assign(target(), edge(0, "p", epoch=2), edge(1, "r", epoch=2))
    assert {e.fetch for e in effects if isinstance(e, DrainFetch)} == {f.fetch for f in fetches.values()}
    for stripe in (0, 1):
        assert not opened(rig, *rig.do(FetchEnded(fetches[stripe].fetch, None, progressed=True)))
    assert opened(rig, *rig.do(FetchEnded(fetches[2].fetch, None, progressed=True))).keys() == {0, 1}


def test_what_drains_already_goes_on() -> None:
    rig, fetches = started()
    rig.assign(target(), edge(0, "q", epoch=2), edge(1, "r"))  # moved a moment before
    effects = rig.assign(target(), *(edge(s, "p", stripes=THREE, epoch=3) for s in range(3)))
    assert [e.fetch for e in effects if isinstance(e, DrainFetch)] == [fetches[1].fetch]
    assert not [e for e in effects if isinstance(e, CloseFetch)]
    assert not opened(rig, *rig.do(FetchEnded(fetches[1].fetch, None, progressed=True)))
    effects = rig.do(FetchEnded(fetches[0].fetch, None, progressed=True))
    assert opened(rig, *effects).keys() == {0, 1, 2}


def test_who_does_not_end_is_not_waited_for() -> None:
    rig, fetches = started()
    rig.assign(target(), *(edge(s, "p", stripes=THREE, epoch=2) for s in range(3)))
    effects = rig.wait()
    assert {e.fetch for e in effects if isinstance(e, CloseFetch)} == {f.fetch for f in fetches.values()}
    assert opened(rig, *effects).keys() == {0, 1, 2}


def test_a_disk_that_fails_meanwhile_is_heard_of() -> None:
    rig, fetches = started()
    rig.assign(target(), *(edge(s, "p", stripes=THREE, epoch=2) for s in range(3)))
    rig.do(FetchEnded(fetches[0].fetch, LocalFault.DISK_FULL, "full"))
    effects = rig.do(FetchEnded(fetches[1].fetch, None))
    assert not opened(rig, *effects)
    assert opened(rig, *rig.wait()).keys() == {0, 1, 2}


def test_what_is_not_wanted_any_more_is_not_drained_either() -> None:
    rig, fetches = started()
    rig.assign(target(), *(edge(s, "p", stripes=THREE, epoch=2) for s in range(3)))
    effects = rig.assign()
    assert {e.fetch for e in effects if isinstance(e, CloseFetch)} == {f.fetch for f in fetches.values()}


@pytest.mark.parametrize("fault", [LocalFault.DAMAGED, LocalFault.ROOT_MISMATCH])
def test_what_is_received_from_scratch_takes_nothing_of_what_was_on_its_way(fault: LocalFault) -> None:
    rig, fetches = started()
    rig.do(Progress(A, ((0, 4),), 4))
    rig.assign(target(root=ROOT_A), *(edge(s, "p", stripes=THREE, epoch=2) for s in range(3)))
    effects = rig.do(LandFailed(A, fault, "not what was written"))
    before = effects[: effects.index(ResetObject(A))]
    assert all(CloseFetch(fetch.fetch) in before for fetch in fetches.values())


def test_stripes_that_become_a_plain_chain() -> None:
    rig, fetches = started()
    rig.assign(target(), EdgeOrder(A, 0, 2, source("p")))
    rig.do(FetchEnded(fetches[0].fetch, None, progressed=True))
    effects = rig.do(FetchEnded(fetches[1].fetch, None, progressed=True))
    assert {s: f.stripes.plain for s, f in opened(rig, *effects).items()} == {0: True}
    assert len(rig.open) == 1


def test_a_full_disk_stops_all_and_all_go_on() -> None:
    rig, fetches = started()
    rig.do(Progress(A, ((0, 1),), 4))
    effects = rig.do(FetchEnded(fetches[0].fetch, LocalFault.DISK_FULL, "full"))
    assert CloseFetch(fetches[1].fetch) in effects
    assert not rig.open
    assert opened(rig, *rig.wait()).keys() == {0, 1}
