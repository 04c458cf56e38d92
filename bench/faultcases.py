"""The faults of the fault table: what is done to whom, and which relays are looked at afterwards.

Chains are lists of names from the head; with stripes those of all stripes, and everybody is in several. A victim in
the middle has somebody in front and somebody behind, so that a repair has a choice.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.fleet import ShapedFleet, Worker, flip_byte
from bench.links import Link
from chappe.core.manifest import CHUNK_BYTES_PLAIN

Chains = Sequence[Sequence[str]]
JOINER = "joiner"
ROTTEN = 32
"""Chunks that rot where there are stripes: more than the longest period of a map of them."""
CATCH_UP = 8
"""The rotted chunk is read by a relay that joins at half of the bytes: over links so much faster, that it does not
become what the broadcast waits for."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A fleet at half of the bytes."""

    fleet: ShapedFleet
    chains: Chains
    victim: str
    link: Link  # the victim's, and a joiner's
    payload_bytes: int
    stripes: int


Line = dict[str, Any]
_NO_DECISIONS = frozenset(
    {"session_lost", "parent_lost", "lease_lapsed", "fraction_installed", "root_announced", "closed", "ended"}
    | {"slow_hop", "probe", "probe_failed", "dialled_back", "coordinator_ready"}
)


def first_decision(lines: Sequence[Line]) -> Line | None:
    """What the coordinator did first; that it noticed something is not yet that."""
    return next((x for x in lines if x["who"] == "coordinator" and x["event"] not in _NO_DECISIONS), None)


def no_longer_trusted(lines: Sequence[Line]) -> Line | None:
    """Demoted, or, with stripes, given less to send: from sums over its hops, because somebody behind it lags, or in a
    new plan of the rest."""
    found = {"demoted", "uplink_short", "segment_moved", "restriped"}
    return next((x for x in lines if x["event"] in found), None)


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
    """The segments below the victim."""
    return _once(name for chain in chains if victim in chain for name in chain[chain.index(victim) + 1 :])


def others(chains: Chains, victim: str) -> list[str]:
    return [name for name in everybody(chains, victim) if name != victim]


def everybody(chains: Chains, _: str) -> list[str]:
    return _once(name for chain in chains for name in chain)


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def joiner(_chains: Chains, _victim: str) -> list[str]:
    return [JOINER]


def second(chains: Chains) -> str:
    """A relay with somebody in front and behind; of several, the one that has both in most stripes."""
    return _most_often([name for chain in sorted(chains, key=len, reverse=True) for name in chain[1:-1]])


def tail(chains: Chains) -> str:
    return _most_often([chain[-1] for chain in sorted(chains, key=len, reverse=True)])


def shortest_tail(chains: Chains) -> str:
    """Behind whom a late joiner is placed; with stripes, and an uplink to spare, it stands in front of tails."""
    if len(everybody(chains, "")) == sum(map(len, chains)):
        return min(chains, key=len)[-1]
    return _most_often([chain[-2] for chain in sorted(chains, key=len) if len(chain) > 1])


def _most_often(names: Sequence[str]) -> str:
    return max(names, key=Counter(names).__getitem__)  # the first of several


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
    """A bit of a chunk flips that the victim has had for long, and somebody comes who needs it from there. With stripes
    one of each of many chunks in a row: the joiner takes those of some stripes from there."""
    files = list(scene.fleet.store(scene.victim).glob("objects/*/files/model.safetensors"))
    for chunk in range(1 if scene.stripes == 1 else ROTTEN):
        flip_byte(files[0], scene.payload_bytes // 8 + chunk * CHUNK_BYTES_PLAIN)
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
        answer=no_longer_trusted,
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
