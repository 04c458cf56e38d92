"""Whether a full snapshot is there sooner when it is compressed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chappe.planning.topology import broadcast_floor


@dataclass(frozen=True, slots=True)
class Gain:
    saved_s: float  # on the links
    added_s: float  # at both ends

    @property
    def worth(self) -> bool:
        return self.saved_s > self.added_s


def compression_gain(
    full_bytes: int,
    compressed_bytes: int,
    encode_bytes_per_s: float,
    decode_bytes_per_s: float,
    origin_bytes_per_s: float,
    uplinks_bytes_per_s: Sequence[float],
    downlinks_bytes_per_s: Sequence[float],
    fraction: float = 1.0,
) -> Gain:
    """Saved is the difference of the two floors (see `broadcast_floor`).

    Added is all of encoding, before the first byte can leave, and what decoding takes longer than the bytes take to
    arrive: it goes on meanwhile. Both rates are of the snapshot's bytes. Raises ValueError without workers.
    """
    full_s, compressed_s = (
        broadcast_floor(size, origin_bytes_per_s, uplinks_bytes_per_s, downlinks_bytes_per_s, fraction)
        for size in (full_bytes, compressed_bytes)
    )
    behind_s = max(0.0, full_bytes / decode_bytes_per_s - compressed_s)
    return Gain(full_s - compressed_s, full_bytes / encode_bytes_per_s + behind_s)
