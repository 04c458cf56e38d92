"""Closed sets of reasons: each decision carries one into the log, the status and a metric label."""

from __future__ import annotations

from enum import StrEnum


class ParentLossReason(StrEnum):
    """Why a child has no stream from its parent any more, as the child saw it."""

    UNREACHABLE = "unreachable"  # could not dial, or TLS failed
    BROKEN = "broken"  # the stream broke
    STALLED = "stalled"  # parent is ahead, nothing comes
    BUSY = "busy"
    EVICTED = "evicted"
    STALE = "stale"
    BAD_TOKEN = "bad_token"  # noqa: S105
    UNKNOWN_OBJECT = "unknown_object"
    DROPPED = "dropped"
    LEAVING = "leaving"
    CORRUPT = "corrupt"  # chunks that do not match their page
    PROTOCOL = "protocol"  # the parent broke the protocol


class RebuildReason(StrEnum):
    """Why a segment was rebuilt."""

    SESSION_LOST = "session_lost"  # the relay's stream to the coordinator broke and did not come back in time
    LEASE_LAPSED = "lease_lapsed"
    PARENT_UNREACHABLE = "parent_unreachable"  # the child cannot get at it, the coordinator can
    CORRUPT = "corrupt"
    DISK_FULL = "disk_full"
    DRAINED = "drained"
    FORGOTTEN = "forgotten"
    RESTARTED = "restarted"
    ORIGIN_LOST = "origin_lost"
    ORIGIN_RETURNED = "origin_returned"
    SUPERSEDED = "superseded"
    JOINED = "joined"
    RETURNED = "returned"  # was lost or restarted out of its place
    RESTORED = "restored"  # the version that superseded this one came to nothing
    FINISHED_OLDER = "finished_older"  # had an older version to finish first
    FALLBACK = "fallback"  # the child healed by its fallback token, and that was adopted
    SLOW_SENDER = "slow_sender"  # a hop under half of what it should carry: is its sender the cause?
    SLOW_RECEIVER = "slow_receiver"  # it was not: the receiver's downlink is
    RESTRIPED = "restriped"  # links carry something else than was believed: the rest was laid out anew
    LAGGARD = "laggard"  # its stripe would end last here, and somebody had an uplink to spare
    DELTA_FAILED = "delta_failed"  # gets the full object: it could not apply the delta, or that has no source
    UNDIALABLE = "undialable"  # neither end of a hop could dial the other


class DemotionReason(StrEnum):
    """Why a relay is not trusted to relay at speed."""

    SLOW_SENDER = "slow_sender"


class RedemptionReason(StrEnum):
    """Why it is again."""

    EARNED = "earned"  # it has sent at the fleet's rate for long enough
    SERVED = "served"  # nobody could measure it for long: it is given another chance


class LostReason(StrEnum):
    """Why a targeted worker left the denominator."""

    LEASE_LAPSED = "lease_lapsed"
    FORGOTTEN = "forgotten"
    DRAINED = "drained"
