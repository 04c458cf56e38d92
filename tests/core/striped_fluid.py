"""Striped broadcasts of eight unequal workers, played by `bench.fleetfluid` with the real fleet machine."""

from __future__ import annotations

from bench.fleetfluid import FleetFluid, Line

MBIT = 1e6 / 8
MIB = 1 << 20
UPS = (30, 20, 20, 20, 15, 10, 6, 6)


def broadcast(
    *,
    slow: dict[int, float] | None = None,
    slow_down: dict[int, float] | None = None,
    size: int = 64 * MIB,
    chunk: int = 256 << 10,
    drains: bool = True,
) -> FleetFluid:
    """Eight workers; `slow` and `slow_down` are those whose links carry another share of what they declare."""
    lines = [
        Line(
            f"w{i}",
            up * MBIT * (slow or {}).get(i, 1.0),
            30 * MBIT * (slow_down or {}).get(i, 1.0),
            up * MBIT,
            30 * MBIT,
        )
        for i, up in enumerate(UPS)
    ]
    return FleetFluid(size, 60 * MBIT, lines, chunk_bytes=chunk, check=True, drains=drains)


HALF = {0: 0.5}
