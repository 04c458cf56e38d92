"""A publication as rows: what is written is what has changed, and together they are the publication."""

from __future__ import annotations

import pytest

from chappe.core.chain import Chain, Layout
from chappe.core.edges import Issued
from chappe.core.events import Topology
from chappe.core.publication import Member, Phase, Publication
from chappe.core.reasons import LostReason
from chappe.core.rows import HEAD, Rows, assemble, split
from tests.core.written import in_any_order


def make(workers: int = 200, chains: int = 4) -> Publication:
    publication = Publication("o", 3, "id-origin", 1.0, Topology.CHAINS, chains, 1 << 16, 1000, 50.0)
    names = [f"w{n}" for n in range(workers)]
    publication.layout = Layout(Chain(0, slot, names[slot::chains]) for slot in range(chains))
    for number, name in enumerate(names):
        publication.enlist(name, Member(name))
        publication.edges.main[0, name] = Issued("p", 0, 1, 1, 0, 10 + number)
        publication.edges.fallback[0, name] = {"q": Issued("q", 0, 1, 1, 10, 1000 + number)}
    return publication


def test_at_first_all_of_it_is_written_and_then_nothing() -> None:
    publication, rows = make(), Rows()
    first = rows.changes(publication)
    assert len(first) == 1 + 4 + 200 + 200
    assert rows.changes(publication) == {}


def test_a_worker_that_gets_further_is_one_row() -> None:
    publication, rows = make(), Rows()
    rows.changes(publication)
    publication.advance("w7", 2)
    assert rows.changes(publication) == {("member", "w7"): publication.members["w7"].to_json()}
    publication.phase = Phase.OPEN
    publication.lose("w7", LostReason.LEASE_LAPSED)
    changed = rows.changes(publication)
    assert list(changed) == [HEAD, ("member", "w7")]
    assert changed["member", "w7"] == publication.members["w7"].to_json()


def test_a_death_inside_a_chain_is_its_neighbourhood() -> None:
    publication, rows = make(), Rows()
    rows.changes(publication)
    chain = publication.layout.chains[1]
    publication.layout.remove("w5")
    publication.edges.forget(0, "w5")
    publication.edges.main[0, "w9"] = Issued("p", 0, 1, 1, 0, 5000)
    changed = rows.changes(publication)
    assert set(changed) == {("chain", "1"), ("edge", "0 w5"), ("edge", "0 w9")}
    assert changed["edge", "0 w5"] is None
    assert changed["chain", "1"] == {"stripe": 0, "slot": 1, "members": chain.members, "rooted": False}


def test_an_equal_edge_that_was_derived_anew_is_not_written() -> None:
    publication, rows = make(), Rows()
    rows.changes(publication)
    for key, by_ancestor in list(publication.edges.fallback.items()):
        publication.edges.fallback[key] = dict(by_ancestor)
    assert rows.changes(publication) == {}


def test_the_end_of_a_publication_is_its_head() -> None:
    publication, rows = make(), Rows()
    rows.changes(publication)
    publication.t_bcast["0.5"] = 12.5
    assert list(rows.changes(publication)) == [HEAD]
    publication.t_bcast["0.9"] = 13.5  # the document that was given out is not the dictionary that changes
    assert list(rows.changes(publication)) == [HEAD]


def test_fewer_chains_leave_no_rows_behind() -> None:
    publication, rows = make(), Rows()
    written = rows.changes(publication)
    publication.layout = Layout([Chain(0, 0, ["w1", "w2"])])
    publication.edges.main.clear()
    publication.edges.fallback.clear()
    publication.expel("w3")
    written |= rows.changes(publication)
    left = {key: row for key, row in written.items() if row is not None}
    assert in_any_order(assemble(left)) == in_any_order(publication.to_json())
    assert [key for key in left if key[0] in ("chain", "edge")] == [("chain", "0")]
    assert ("member", "w3") not in left


def test_chains_keep_their_order_beyond_nine() -> None:
    publication = make(30, 12)
    (rows,) = split([publication.to_json()]).values()
    assert [c["slot"] for c in assemble(dict(sorted(rows.items())))["layout"]] == list(range(12))


def test_a_document_of_the_time_of_one_delta_is_understood() -> None:
    document = {key: value for key, value in make(2, 1).to_json().items() if key not in ("deltas", "t_train_s")}
    main = split([{**document, "delta_id": "d", "base_root": "x:base"}])["o"][HEAD]
    lane = split([{**document, "delta_id": "", "main": "m", "base_root": "x:base"}])["o"][HEAD]
    without = split([{**document, "delta_id": "", "base_root": ""}])["o"][HEAD]
    assert [(head["deltas"], head["base_root"]) for head in (main, lane, without)] == [
        ({"d": "x:base"}, ""),
        ({}, "x:base"),
        ({}, ""),
    ]


@pytest.mark.parametrize("rows", [{}, {("chain", "x"): {}, HEAD: {}}, {HEAD: {}, ("edge", "0 a"): {}}])
def test_rows_that_are_no_publication_are_refused(rows: dict[tuple[str, str], dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="no publication"):
        assemble(rows)
