"""`chappe simulate`: a broadcast of a simulated fleet, with the real decisions, over simulated links and faults."""

from __future__ import annotations

import json as jsonlib
import random
import sys
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import field_validator

from chappe.cli.settings import EXIT_FAILED, Duration, Flat, Rate, Settings, Size
from chappe.core.events import Payload, Topology
from chappe.errors import UsageError
from chappe.sim.faults import KINDS, LANE_KINDS, MIXED, STREAM_KINDS, STRIPE_KINDS
from chappe.sim.scenario import Result, Scenario
from chappe.sim.scenario import simulate as play
from chappe.sim.streamed import STREAMED
from chappe.units import format_duration, parse_rate

RELAYS_MAX = 100_000


class SimulateSettings(Settings):
    """What is simulated. The same settings and seed give the same run, on any machine."""

    relays: int = 10
    """How many relays."""
    seed: int = 0
    """Decides everything that is left to chance."""
    faults: str = "mixed"
    """none, mixed (every kind), or kinds separated by commas. Processes and hosts: kill, restart, pause, ghost (an old
    copy of a store says Hello), hook (an install hook fails), clock, joins, leaves, outage (several die at once).
    Links: slow (a dip), uplink and downlink (halved for long), tail (the downlink of a tail), blackhole (one way),
    partition, reset, nat (cannot be dialled any more). Bytes: corrupt, rot, forge (a false page), poison (one for a
    chunk of another stripe), disk (full). The rest: coordinator, publisher, source (files change). With --payload-kind:
    absent (a host is away for some versions), base (a landed version rots), nodelta (a promised delta does not come),
    wrongdelta (it leads to other bytes), lostbase (what the publisher keeps is damaged); in the middle of a delta that
    is still being made: outgrows (it is withdrawn), openpublisher, openparent (they die), openjoins; while a relay
    fetches what its damaged base did not give (add base): partsource, partkilled, partassigned."""
    faults_most: int = 6
    """At most so many faults; at least one."""
    payload: Size = 16_400_000_000
    """Bytes of one snapshot."""
    uplink: Rate = 12_500_000.0
    """Of each relay."""
    uplinks: str = ""
    """Of the relays one by one, with commas between them and over and over: 30mbit,20mbit,8mbit. --uplink for none."""
    downlink: Rate = 12_500_000.0
    """Of each relay."""
    origin_uplink: Rate = 37_500_000.0
    """Of the publisher."""
    latency: Duration = 0.01
    """From any host to any other, one way."""
    nat: float = 0.0
    """The share of relays that nobody can dial; half of them say so."""
    topology: Literal["chains", "striped", "auto", "star"] = "chains"
    """As of `chappe publish`."""
    publications: int = 1
    """How many versions are published, one before the other is through."""
    payload_kind: Payload = Payload.FULL
    """What may travel: full, or auto, delta, compressed as `chappe publish --payload` has them. The first version has
    nothing to begin at: take several --publications."""
    changed: float = 0.01
    """What a delta has of the snapshot's bytes."""

    @field_validator("relays", "publications", "faults_most")
    @classmethod
    def _positive(cls, value: int) -> int:
        if not 1 <= value <= RELAYS_MAX:
            raise ValueError(f"{value} is not from 1 to {RELAYS_MAX}")
        return value

    @field_validator("changed")
    @classmethod
    def _some(cls, value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError(f"{value} is not above 0, and 1 at most")
        return value

    @field_validator("nat")
    @classmethod
    def _share(cls, value: float) -> float:
        if not 0 <= value <= 1:
            raise ValueError(f"{value} is not from 0 to 1")
        return value

    @property
    def kinds(self) -> tuple[str, ...]:
        """Raises UsageError."""
        if self.faults in ("none", "mixed"):
            mixed = MIXED if self.payload_kind is Payload.FULL else STREAMED
            if self.topology in ("striped", "auto"):
                mixed = (*mixed, *STRIPE_KINDS)
            return mixed if self.faults == "mixed" else ()
        kinds = tuple(kind.strip() for kind in self.faults.split(","))
        for kind in kinds:
            if kind not in KINDS:
                raise UsageError(f"--faults: {kind!r} is not one of none, mixed, {', '.join(KINDS)}")
            if kind in LANE_KINDS | STREAM_KINDS and self.payload_kind is Payload.FULL:
                raise UsageError(f"--faults: {kind!r} needs other objects than full ones: add --payload-kind auto")
        return kinds

    @property
    def each(self) -> tuple[float, ...]:
        """Raises UsageError."""
        try:
            return tuple(parse_rate(rate.strip()) for rate in self.uplinks.split(",")) if self.uplinks else ()
        except UsageError as error:
            raise UsageError(f"--uplinks: {error}") from error

    def scenario(self) -> Scenario:
        return Scenario(
            self.seed,
            self.relays,
            self.payload,
            uplink_bytes_per_s=self.uplink,
            downlink_bytes_per_s=self.downlink,
            origin_uplink_bytes_per_s=self.origin_uplink,
            faults=self.kinds,
            faults_most=self.faults_most,
            publications=self.publications,
            latency_s=self.latency,
            natted_share=self.nat,
            payload=self.payload_kind,
            changes=(self.changed,),
            compresses=self.payload_kind is Payload.COMPRESSED,
            streams=self.payload_kind is not Payload.FULL,
            topologies=(Topology(self.topology),),
            uplinks_bytes_per_s=self.each,
        )


DEFAULTS = SimulateSettings()


def simulate(
    *,
    settings: Annotated[SimulateSettings, Flat] = DEFAULTS,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Simulate a fleet with the coordinator's and the relays' real decisions, over simulated links and faults.

    Exit code 1: an invariant broke, or no fault was injected although some were asked for. The seed, the last part of
    the event log and the invariant are then on stderr.

    Parameters
    ----------
    json
        Print one JSON object instead of one line.
    """
    result = play(settings.scenario(), random.Random(settings.seed))  # noqa: S311  # not a secret
    missing = bool(settings.kinds) and not result.faults
    print(jsonlib.dumps(result_json(result)) if json else summary(result))
    if missing:
        print(f"no fault could be injected: seed {result.seed}, --faults {settings.faults}", file=sys.stderr)
    if result.broken:
        report = [*result.trail, *result.broken, f"replay with the same settings and --seed {result.seed}"]
        print("\n".join(report), file=sys.stderr)
    return EXIT_FAILED if missing or result.broken else 0


def result_json(result: Result) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "relays": result.relays,
        "events": result.events,
        "faults": result.faults,
        "t_bcast": result.t_bcast,
        "floor_s": result.floor_s,
        "simulated_s": round(result.simulated_s, 3),
        "invariants_broken": len(result.broken),
    }


def summary(result: Result) -> str:
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(result.faults.items())) or "none"
    whole = result.t_bcast["1.0"]
    reached = "not reached" if whole is None else format_duration(whole)
    floor = "" if result.floor_s is None else f" (floor {format_duration(result.floor_s)})"
    return (
        f"seed {result.seed}: {result.relays} relays, {result.events} events, faults: {faults}; "
        f"T_bcast(1.0) {reached}{floor}; {len(result.broken)} invariants broken"
    )
