"""Chappe: each new policy snapshot of an RL training run, delivered to a fleet of rollout hosts down relay chains.

`Publisher` belongs to the trainer, `Subscriber` to the rollout host; both have an `Async` twin. Names are imported on
first use, so that `import chappe` costs nothing in a process that only wants one of them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chappe.admission import Admission
    from chappe.publication import AsyncPublication, Publication, PublicationStatus, PublicationWanted
    from chappe.publisher import AsyncPublisher, Publisher
    from chappe.rollouts import RolloutSession, Trajectory
    from chappe.snapshot import Snapshot
    from chappe.subscriber import AsyncSubscriber, Subscriber

# Trainers fork (data loaders), and gRPC's handlers restart its threads in the child: one fork in five beside a busy
# channel ended with a segmentation fault there. Without them a child that does not use gRPC is safe; no other ever
# was. gRPC reads it when it starts, so this has to come before its first import; a value set by the user stays.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

__all__ = [
    "Admission",
    "AsyncPublication",
    "AsyncPublisher",
    "AsyncSubscriber",
    "Publication",
    "PublicationStatus",
    "PublicationWanted",
    "Publisher",
    "RolloutSession",
    "Snapshot",
    "Subscriber",
    "Trajectory",
]

_MODULES = {
    "Admission": "chappe.admission",
    "AsyncPublication": "chappe.publication",
    "AsyncPublisher": "chappe.publisher",
    "AsyncSubscriber": "chappe.subscriber",
    "Publication": "chappe.publication",
    "PublicationStatus": "chappe.publication",
    "PublicationWanted": "chappe.publication",
    "Publisher": "chappe.publisher",
    "RolloutSession": "chappe.rollouts",
    "Snapshot": "chappe.snapshot",
    "Subscriber": "chappe.subscriber",
    "Trajectory": "chappe.rollouts",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
