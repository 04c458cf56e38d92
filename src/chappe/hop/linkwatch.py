"""Sees from what the kernel says of a data connection that a long link loses packets, so that one cannot fill it.

cubic and reno take every loss for a full link: they carry about 1.2 * segment / (round trip * sqrt(loss)) (Mathis et
al., 1997), whatever the link could. Who is really at a link's limit has packets waiting in front of it: its round trips
are longer than the shortest. A congestion control that goes by the rate does not need help.
"""

from __future__ import annotations

from chappe.hop.tcp_info import TcpInfo

LOOK_S = 2.0
STEADY = "bbr"
"""What a connection goes over to where the kernel has it and lets this process: over 200 ms and 1 % it carried 82 of
100 Mbit/s, eight connections with cubic 7.6, one 1.3; over 100 ms and 1 %, begun with cubic, 73, where one carries
1.4."""
STREAMS_WHERE_LOSSY = 8
"""Where it does not."""
LOOKS = 2
"""In a row: a link that is filled loses some packets now and then, and many when a connection begins."""
_LONG_S = 0.02
"""Round trips below this cost cubic little."""
_QUEUED_SHARE = 1.3
_BUSY_SHARE = 0.8
_ENOUGH_SHARE = 0.8
_BY_RATE = ("bbr",)


class LinkWatch:
    """Of one connection, looked at every `LOOK_S`."""

    def __init__(self, expected_bytes_per_s: float = 0.0) -> None:
        """What the coordinator expects of the hop: one that carries about that lacks nothing. 0: it has not said."""
        self._expected_bytes_per_s = expected_bytes_per_s
        self._before: TcpInfo | None = None
        self._before_s = 0.0
        self._lossy = 0

    def one_is_too_few(self, info: TcpInfo | None, congestion_control: str, now: float) -> bool:
        """`info` is None where the kernel does not say: never then, nor where it names no congestion control."""
        before, seconds = self._before, now - self._before_s
        self._before, self._before_s = info, now
        if info is None or before is None or seconds <= 0 or not congestion_control:
            return False
        lossy = not congestion_control.startswith(_BY_RATE) and self._is_lossy(before, info, seconds)
        self._lossy = self._lossy + 1 if lossy else 0
        return self._lossy >= LOOKS

    def _is_lossy(self, before: TcpInfo, info: TcpInfo, seconds: float) -> bool:
        rate = (info.bytes_acknowledged - before.bytes_acknowledged) / seconds
        return (
            info.segments_again > before.segments_again
            and info.round_trip_s_min >= _LONG_S
            and info.round_trip_s <= _QUEUED_SHARE * info.round_trip_s_min
            and info.busy_s - before.busy_s >= _BUSY_SHARE * seconds
            and not 0 < _ENOUGH_SHARE * self._expected_bytes_per_s <= rate
        )
