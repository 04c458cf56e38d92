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

    Added is what the slower of encoding and decoding takes longer than the bytes take on the links: all three go on
    side by side. Both rates are of the snapshot's bytes. Raises ValueError without workers.
    """
    full_s, compressed_s = (
        broadcast_floor(size, origin_bytes_per_s, uplinks_bytes_per_s, downlinks_bytes_per_s, fraction)
        for size in (full_bytes, compressed_bytes)
    )
    ends_s = full_bytes / min(encode_bytes_per_s, decode_bytes_per_s)
    return Gain(full_s - compressed_s, max(0.0, ends_s - compressed_s))
