"""How many data connections a hop has, as users say it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from chappe.errors import UsageError
from chappe.wire.tcp_frames import STREAMS_AUTO, STREAMS_MAX

Streams: TypeAlias = int | Literal["auto"]


def streams_number(streams: Streams) -> int:
    """As `STREAMS_AUTO` or a number. Raises UsageError."""
    if streams == "auto":
        return STREAMS_AUTO
    if not isinstance(streams, int) or not 1 <= streams <= STREAMS_MAX:
        raise UsageError(f'streams={streams!r}: 1 to {STREAMS_MAX} connections for each hop, or "auto"')
    return streams


def asked_streams(streams: Streams) -> int:
    """What a child asks its parent for: it takes more than one where the parent finds that the link needs them."""
    return max(1, streams_number(streams))
