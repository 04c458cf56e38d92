"""What a publisher's caller may ask for: the types of its arguments, and the checks of a publication's options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from chappe.errors import UsageError
from chappe.origin.encoders import PROCESSES_MAX
from chappe.publication import PublicationWanted, check_fraction
from chappe.v1 import coordinator_pb2 as pb

Tensors = Mapping[str, Any]
"""Names to torch or numpy tensors, as `model.state_dict()` gives them."""
Source = str | os.PathLike[str] | Tensors

OnWanted = Callable[[PublicationWanted], Any]
"""A function, called in a thread of its own, or a coroutine function, run on the publisher's loop."""

PAYLOADS = ("auto", "full", "delta", "compressed")
TOPOLOGIES = {
    "chains": pb.TOPOLOGY_CHAINS,
    "star": pb.TOPOLOGY_STAR,
    "striped": pb.TOPOLOGY_STRIPED,
    "auto": pb.TOPOLOGY_AUTO,
}
T_TRAIN_S_MAX = 1e6


def request_of(
    origin_id: str,
    version: int | None,
    *,
    payload: str,
    until: float,
    topology: str,
    chains: int,
    t_train_s: float | None,
) -> pb.PublishRequest:
    """The request for a new object. Raises UsageError that names the option."""
    return pb.PublishRequest(
        origin_id=origin_id,
        version=_checked_version(version),
        until=check_fraction(until, "until"),
        topology=_checked_topology(topology),
        chains=_checked_chains(chains),
        object_id=uuid4().hex,
        payload=_checked_payload(payload),
        t_train_s=_checked_t_train(t_train_s),
    )


def _checked_version(version: int | None) -> int:
    if version is not None and version < 1:
        raise UsageError(f"version={version!r}: versions begin at 1")
    return version or 0


def _checked_payload(payload: str) -> str:
    if payload not in PAYLOADS:
        raise UsageError(f"payload={payload!r} is not one of {', '.join(PAYLOADS)}")
    return payload


def checked_kept(keep_deltas: int) -> int:
    if keep_deltas < 0:
        raise UsageError(f"keep_deltas={keep_deltas!r}: give a number of deltas, or 0 for none")
    return keep_deltas


def checked_encoders(encoders: int | None) -> int | None:
    if encoders is not None and not 0 <= encoders <= PROCESSES_MAX:
        raise UsageError(f"encoders={encoders!r}: give a number of processes up to {PROCESSES_MAX}, or 0 for none")
    return encoders


def _checked_topology(topology: str) -> pb.Topology:
    if topology not in TOPOLOGIES:
        raise UsageError(f"topology={topology!r} is not one of {', '.join(TOPOLOGIES)}")
    return TOPOLOGIES[topology]


def _checked_t_train(t_train_s: float | None) -> float:
    if t_train_s is not None and not 0 < t_train_s <= T_TRAIN_S_MAX:
        raise UsageError(f"t_train_s={t_train_s!r}: give the seconds of a training step, more than zero")
    return t_train_s or 0.0


def _checked_chains(chains: int) -> int:
    if chains < 0:
        raise UsageError(f"chains={chains!r}: give a number of chains, or 0 for the planner's")
    return chains
