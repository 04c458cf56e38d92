"""The status messages as JSON, the way `chappe status --json` and `chappe publish --json` print them (design.md, 5).

The publication's object holds nothing that moves once it is over, so that an idempotent repeat prints the same. What is
not known is null; versions are 0 for none.
"""

from __future__ import annotations

from typing import Any

from chappe.v1 import coordinator_pb2 as pb

Json = dict[str, Any]

T_BCAST_KEYS = ("0.5", "0.9", "1.0")


def publication_json(publication: pb.PublicationStatus) -> Json:
    """What `publish --json` prints."""
    result: Json = {
        "run": publication.run,
        "version": publication.version,
        "root": publication.root or None,
        "kind": publication.kind,
        "payload_bytes": publication.payload_bytes,
        "snapshot_bytes": publication.snapshot_bytes,
        "targeted": publication.targeted,
        "installed": publication.installed,
        "lost": list(publication.lost),
        "installed_fraction": publication.installed_fraction,
        "t_bcast": {key: publication.t_bcast.get(key) for key in T_BCAST_KEYS},
        "floor_s": publication.floor_s if publication.HasField("floor_s") else None,
        "chains": [list(chain.names) for chain in publication.chains],
    }
    if len(publication.payloads) > 1 or publication.kind != "full":
        result["objects"] = [object_json(payload) for payload in publication.payloads]
    return result


def layout_json(publication: pb.PublicationStatus) -> Json:
    """Why the chains are what they are. `rate_bytes_per_s` is what the stripes together bring to a worker."""

    def known(name: str) -> float | None:
        return getattr(publication, name) if publication.HasField(name) else None

    return {
        "reason": publication.layout_reason,
        "stripe_weights": list(publication.stripe_weights) or [1],
        "rate_bytes_per_s": known("rate_bytes_per_s"),
        "striped_s": known("striped_s"),
        "plain_s": known("plain_s"),
    }


def object_json(payload: pb.ObjectStatus) -> Json:
    shown: Json = {
        "object_id": payload.object_id,
        "kind": payload.kind,
        "payload_bytes": payload.payload_bytes,
        "targeted": payload.targeted,
        "installed": payload.installed,
    }
    if payload.kind == "delta":
        shown |= {
            "base_root": payload.base_root,
            "changed_elements": payload.changed_elements,
            "compared_elements": payload.compared_elements,
            "alarm": payload.alarm or None,
        }
    return shown


def relay_json(relay: pb.RelayStatus) -> Json:
    return {
        "name": relay.name,
        "state": relay.state,
        "parent": relay.parent or None,
        "transport": relay.transport or None,
        "chain": relay.chain if relay.chain >= 0 else None,
        "position": relay.position if relay.position >= 0 else None,
        "received": relay.received,
        "verified": relay.verified,
        "installed": relay.installed,
        "progress": relay.progress,
        "rank": relay.rank,
        "downlink_bytes_per_s": relay.downlink_bytes_per_s,
        "uplink_bytes_per_s": relay.uplink_bytes_per_s,
        "source": relay.source,
        "downlink_source": relay.downlink_source,
        "uplink_source": relay.uplink_source,
        "downlink_age_s": relay.downlink_age_s if relay.HasField("downlink_age_s") else None,
        "uplink_age_s": relay.uplink_age_s if relay.HasField("uplink_age_s") else None,
        "demoted": relay.demoted,
        "dialable": relay.dialable,
        "duty": relay.duty or None,
        "duty_reason": relay.duty_reason or None,
        "price_per_hour": relay.price_per_hour if relay.HasField("price_per_hour") else None,
        "rollouts_per_s": relay.rollouts_per_s if relay.HasField("rollouts_per_s") else None,
        "rollouts_source": relay.rollouts_source or None,
        "reason": relay.reason,
        "address": relay.address,
    }


def origin_json(origin: pb.OriginStatus) -> Json:
    return {
        "name": origin.name,
        "state": origin.state,
        "uplink_bytes_per_s": origin.uplink_bytes_per_s,
        "source": origin.source,
        "age_s": origin.age_s if origin.HasField("age_s") else None,
        "address": origin.address,
    }


_TRAINING_OPTIONAL = (
    "t_train_s",
    "t_bcast_s",
    "tail_s",
    "slack_s",
    "required_rollouts_per_s",
    "pool_rollouts_per_s",
    "required_workers",
    "bubble",
)


def training_json(training: pb.TrainingStatus) -> Json:
    """What is not known is null."""
    return {
        "verdict": training.verdict,
        "reason": training.reason,
        "kappa": training.kappa,
        "batch": training.batch,
        "gamma": training.gamma,
        "fraction": training.fraction,
        **{name: getattr(training, name) if training.HasField(name) else None for name in _TRAINING_OPTIONAL},
        "t_train_source": training.t_train_source or None,
        "t_bcast_source": training.t_bcast_source or None,
        "active_workers": training.active_workers,
        "learner_version": training.learner_version,
        "fleet_version": training.fleet_version,
        "admitted": training.admitted,
        "discarded": training.discarded,
    }


def status_json(status: pb.Status) -> Json:
    """What `status --json` prints: publications newest first, with what moves added to what `publish` prints."""
    return {
        "run": status.run,
        "relays": [relay_json(relay) for relay in status.relays],
        "origins": [origin_json(origin) for origin in status.origins],
        "publications": [
            publication_json(publication)
            | {
                "fractions": {
                    "received": publication.fractions.received,
                    "verified": publication.fractions.verified,
                    "installed": publication.fractions.installed,
                },
                "state": publication.state,
                "reason": publication.reason,
                "payload_reason": publication.payload_reason,
                "topology": publication.topology,
                "layout": layout_json(publication),
                "floor_source": publication.floor_source or None,
                "elapsed_s": publication.elapsed_s,
            }
            for publication in status.publications
        ],
        "training": training_json(status.training) if status.HasField("training") else None,
    }
