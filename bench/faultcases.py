"""The faults of the fault table: what is done to whom, and which relays are looked at afterwards.

Chains are lists of names from the head. A victim in the middle has somebody in front and somebody behind, so that a
repair has a choice.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.fleet import ShapedFleet, Worker, flip_byte
from bench.links import Link

Chains = Sequence[Sequence[str]]
JOINER = "joiner"
CATCH_UP = 8
"""The rotted chunk is read by a relay that joins at half of the bytes: over links so much faster, that it does not
become what the broadcast waits for."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A fleet at half of the bytes."""

    fleet: ShapedFleet
    chains: Chains
    victim: str
    link: Link
    payload_bytes: int


Line = dict[str, Any]
_NO_DECISIONS = frozenset(
    {"session_lost", "parent_lost", "lease_lapsed", "fraction_installed", "root_announced", "closed", "ended"}
    | {"slow_hop", "probe", "probe_failed", "dialled_back", "coordinator_ready"}
)


def first_decision(lines: Sequence[Line]) -> Line | None:
    """What the coordinator did first; that it noticed something is not yet that."""
    return next((x for x in lines if x["who"] == "coordinator" and x["event"] not in _NO_DECISIONS), None)


def demoted(lines: Sequence[Line]) -> Line | None:
    return next((x for x in lines if x["event"] == "demoted"), None)


def last_joined(lines: Sequence[Line]) -> Line | None:
    return next((x for x in reversed(lines) if x["event"] == "joined"), None)


def rot_met(lines: Sequence[Line]) -> Line | None:
    """A child found the chunk to be wrong."""
    return next((x for x in lines if x.get("reason") == "corrupt"), None)


@dataclass(frozen=True, slots=True)
class Case:
    """`watched`: whose reception tells when the segment receives again. `answer`: the line of the daemons' logs, all of
    them after the fault, that is the fleet's answer to it. `echo_s`: what ECHO-2 took."""

    key: str
    title: str
    inject: Callable[[Scene], Awaitable[None]]
    victim: Callable[[Chains], str]
    watched: Callable[[Chains, str], list[str]]
    aim: str
    echo_s: float | None = None
    answer: Callable[[Sequence[Line]], Line | None] = first_decision
    dies: bool = False
    joins: bool = False


def behind(chains: Chains, victim: str) -> list[str]:
    """The segment below the victim."""
    chain = next(chain for chain in chains if victim in chain)
    return list(chain[chain.index(victim) + 1 :])


def others(chains: Chains, victim: str) -> list[str]:
    return [name for chain in chains for name in chain if name != victim]


def everybody(chains: Chains, _: str) -> list[str]:
    return [name for chain in chains for name in chain]


def joiner(_chains: Chains, _victim: str) -> list[str]:
    return [JOINER]


def second(chains: Chains) -> str:
    """A relay with somebody in front and behind."""
    return max(chains, key=len)[1]


def tail(chains: Chains) -> str:
    return max(chains, key=len)[-1]


def shortest_tail(chains: Chains) -> str:
    """Behind whom a late joiner is placed."""
    return min(chains, key=len)[-1]


async def _kill(scene: Scene) -> None:
    scene.fleet.processes[scene.victim].send_signal(signal.SIGKILL)


async def _blackhole(scene: Scene) -> None:
    scene.fleet.host(scene.victim).blackhole()


async def _halve_uplink(scene: Scene) -> None:
    assert scene.link.up_bytes_per_s is not None
    scene.fleet.host(scene.victim).shape(replace(scene.link, up_bytes_per_s=scene.link.up_bytes_per_s / 2))


async def _halve_downlink(scene: Scene) -> None:
    assert scene.link.down_bytes_per_s is not None
    scene.fleet.host(scene.victim).shape(replace(scene.link, down_bytes_per_s=scene.link.down_bytes_per_s / 2))


async def _restart_coordinator(scene: Scene) -> None:
    await scene.fleet.processes["coordinator"].kill()
    await scene.fleet.start_coordinator()


async def _rot(scene: Scene) -> None:
    """A bit of a chunk flips that the victim has had for long, and somebody comes who needs it from there."""
    files = list(scene.fleet.store(scene.victim).glob("objects/*/files/model.safetensors"))
    flip_byte(files[0], scene.payload_bytes // 8)
    up, down = scene.link.up_bytes_per_s, scene.link.down_bytes_per_s
    assert up is not None
    assert down is not None
    scene.fleet.host(scene.victim).shape(replace(scene.link, up_bytes_per_s=CATCH_UP * up))
    await scene.fleet.add_worker(Worker(JOINER, scene.link))
    scene.fleet.host(JOINER).shape(replace(scene.link, down_bytes_per_s=CATCH_UP * down))


CASES = (
    Case("relay-drops", "relay drops (SIGKILL)", _kill, second, behind, "1 s, T within 5 %", 312, dies=True),
    Case("relay-blackholed", "relay blackholed", _blackhole, second, behind, "stall timeout + 1 s", dies=True),
    Case(
        *("relay-halves", "relay's uplink halves", _halve_uplink, second, behind, "demoted in 10 s", 312),
        answer=demoted,
    ),
    Case("worker-drops", "tail worker drops (SIGKILL)", _kill, tail, others, "no other waits", 240, dies=True),
    Case("worker-halves", "tail's downlink halves", _halve_downlink, tail, others, "no other waits", 240),
    Case(
        *("coordinator", "coordinator killed, restarted", _restart_coordinator, second, everybody, "bytes go on"),
        answer=last_joined,
    ),
    Case(
        *("rot", "stored chunk rots at a relay", _rot, shortest_tail, joiner, "one chunk again"),
        answer=rot_met,
        joins=True,
    ),
)
