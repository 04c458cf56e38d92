"""What `--json` prints: design.md's keys, null for what is unknown, nothing that moves in a finished publication."""

from __future__ import annotations

import json

from chappe.coordinator.status import publication_json, status_json
from chappe.v1 import coordinator_pb2 as pb

PUBLICATION_KEYS = [
    "run",
    "version",
    "root",
    "kind",
    "payload_bytes",
    "snapshot_bytes",
    "targeted",
    "installed",
    "lost",
    "installed_fraction",
    "t_bcast",
    "floor_s",
    "chains",
]
RELAY_KEYS = {
    "name",
    "state",
    "parent",
    "transport",
    "chain",
    "position",
    "received",
    "verified",
    "installed",
    "rank",
    "downlink_bytes_per_s",
    "uplink_bytes_per_s",
    "source",
    "reason",
}


def publication() -> pb.PublicationStatus:
    return pb.PublicationStatus(
        run="r",
        version=3,
        root="xxh3_128:ab",
        kind="full",
        payload_bytes=1 << 40,
        snapshot_bytes=10,
        targeted=4,
        installed=3,
        lost=["d"],
        installed_fraction=0.75,
        t_bcast={"0.5": 1.5},
        floor_s=1.0,
        chains=[pb.Chain(names=["a", "b"]), pb.Chain(names=["c"])],
        fractions=pb.Fractions(received=1.0, verified=0.75, installed=0.75),
        state="open",
        objects=["o1"],
        elapsed_s=7.0,
    )


def test_a_publication_has_the_fixed_keys_and_nothing_that_moves() -> None:
    result = publication_json(publication())
    assert list(result) == PUBLICATION_KEYS
    assert result["t_bcast"] == {"0.5": 1.5, "0.9": None, "1.0": None}
    assert result["chains"] == [["a", "b"], ["c"]]
    assert result["payload_bytes"] == 1 << 40
    later = publication()
    later.elapsed_s = 99.0
    assert json.dumps(publication_json(later)) == json.dumps(result)


def test_unknown_is_null_and_several_objects_are_named() -> None:
    empty = publication_json(pb.PublicationStatus())
    assert (empty["root"], empty["floor_s"], empty["t_bcast"]["1.0"]) == (None, None, None)
    assert publication_json(pb.PublicationStatus(floor_s=0.0))["floor_s"] == 0.0
    full = pb.ObjectStatus(object_id="a", kind="full", payload_bytes=9, targeted=1)
    delta = pb.ObjectStatus(object_id="b", kind="delta", base_root="r", changed_elements=3, compared_elements=4)
    assert "objects" not in publication_json(pb.PublicationStatus(kind="full", payloads=[full]))
    shown = publication_json(pb.PublicationStatus(kind="mixed", payloads=[full, delta]))["objects"]
    assert shown[0] == {"object_id": "a", "kind": "full", "payload_bytes": 9, "targeted": 1, "installed": 0}
    assert (shown[1]["base_root"], shown[1]["changed_elements"], shown[1]["alarm"]) == ("r", 3, None)
    assert len(publication_json(pb.PublicationStatus(kind="delta", payloads=[delta]))["objects"]) == 1


def test_status_lists_relays_and_publications_with_their_fractions() -> None:
    status = pb.Status(
        run="r",
        relays=[
            pb.RelayStatus(
                name="a", state="installed", chain=0, position=0, parent="origin", installed=3, progress=1.0
            ),
            pb.RelayStatus(name="b", state="idle", chain=-1, position=-1),
        ],
        publications=[publication()],
    )
    result = status_json(status)
    placed, idle = result["relays"]
    assert set(placed) >= RELAY_KEYS
    assert (placed["parent"], placed["chain"], placed["position"], placed["installed"]) == ("origin", 0, 0, 3)
    assert (idle["parent"], idle["chain"], idle["position"], idle["installed"]) == (None, None, None, 0)
    assert result["publications"][0]["fractions"] == {"received": 1.0, "verified": 0.75, "installed": 0.75}
    assert list(result["publications"][0])[: len(PUBLICATION_KEYS)] == PUBLICATION_KEYS
    json.dumps(result)
