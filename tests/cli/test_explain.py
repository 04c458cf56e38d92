"""`chappe explain`: from a status, in each kind of layout."""

from __future__ import annotations

import pytest

from chappe.cli.explain import explained, lines
from chappe.errors import UsageError
from chappe.v1 import coordinator_pb2 as pb


def status(topology: str, *chains: tuple[str, ...], demoted: bool = False) -> pb.Status:
    relays = [
        pb.RelayStatus(
            name=name,
            state="receiving",
            reason=f"why {name}",
            uplink_bytes_per_s=1e6,
            downlink_bytes_per_s=2e6,
            uplink_source="measured",
            uplink_age_s=3.0,
            downlink_source="declared",
            demoted=demoted,
            dialable="no" if name == "c" else "yes",
        )
        for name in ("a", "b", "c", "idle")
    ]
    publication = pb.PublicationStatus(
        version=3, topology=topology, floor_s=7.0, chains=[pb.Chain(names=chain) for chain in chains]
    )
    return pb.Status(run="r", relays=relays, publications=[publication])


def test_stripes_say_who_feeds_it_and_whom_it_feeds_in_each() -> None:
    answer = status("auto", ("a", "b"), ("c",), ("b", "c"), ("a",))
    (publication,) = answer.publications
    for chain, stripe in zip(publication.chains, (0, 0, 1, 1), strict=True):
        chain.stripe = stripe
    publication.stripe_weights.extend((1, 3))
    publication.payload_bytes, publication.layout_reason = 7_000_000, "2 stripes for 3 unequal workers"
    publication.rate_bytes_per_s, publication.striped_s, publication.plain_s = 800_000.0, 9.0, 12.0
    found = explained(answer, "b")
    assert found["publication"]["stripes"] == 2
    assert found["publication"]["bound_bytes_per_s"] == 1e6
    assert found["publication"]["sends_share"] == 0.75
    assert found["publication"]["inner"] == 1
    assert [(p["stripe"], p["parent"], p["child"]) for p in found["publication"]["places"]] == [
        (0, "a", None),
        (1, None, "c"),
    ]
    shown = "\n".join(lines(found))
    assert "why b" in shown
    assert "2 stripes, sends in 1 of them, floor 7" in shown
    assert "stripe 0 (25%): fed by a, feeds nobody" in shown
    assert "stripe 1 (75%): fed by the publisher, feeds c" in shown
    assert "2 stripes for 3 unequal workers" in shown
    assert "R, into every worker: 6.4 Mbit/s of 8 Mbit/s that no topology beats" in shown
    assert "it passes on 75% of R, 4.8 Mbit/s" in shown
    assert "expected: striped 9" in shown
    assert ", plain 12" in shown
    assert "uplink 8 Mbit/s, measured 3" in shown
    assert "downlink 16 Mbit/s, declared" in shown


def test_a_plain_chain_and_a_star() -> None:
    shown = "\n".join(lines(explained(status("chains", ("a", "b", "c")), "b")))
    assert "a plain chain" in shown
    assert "expected" not in shown, "nothing was compared"
    assert "R, into" not in shown
    assert "a star" in "\n".join(lines(explained(status("star", ("a",), ("b",), ("c",)), "b")))


def test_demoted_undialable_and_without_a_place() -> None:
    shown = "\n".join(lines(explained(status("chains", ("a", "c"), demoted=True), "c")))
    assert "demoted" in shown
    assert "cannot be dialled" in shown
    found = explained(status("chains", ("a",)), "idle")
    assert found["publication"] is None
    assert "no place" in "\n".join(lines(found))


def test_who_is_not_there_is_named_with_those_who_are() -> None:
    with pytest.raises(UsageError, match="NAME zed: no such worker in this fleet; it has: a, b, c, idle"):
        explained(status("chains", ("a",)), "zed")
