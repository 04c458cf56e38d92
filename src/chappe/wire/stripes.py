"""Stripe maps to and from messages. An unset one is one stripe with everything in it."""

from __future__ import annotations

from chappe.core.stripemap import PLAIN, StripeMap
from chappe.errors import PeerError
from chappe.v1.relay_pb2 import StripeMap as StripeMapMessage


def encode_stripes(stripes: StripeMap) -> StripeMapMessage | None:
    """None for the plain one: no field, as before there were stripes."""
    return None if stripes.plain else StripeMapMessage(weights=stripes.weights, run=stripes.run)


def decode_stripes(message: StripeMapMessage | None, stripe: int) -> StripeMap:
    """The map of an edge in this stripe. Raises PeerError."""
    if message is None:
        return PLAIN
    try:
        stripes = StripeMap(tuple(message.weights), message.run)
    except ValueError as error:
        raise PeerError(f"a map of stripes that cannot be: {error}") from error
    if stripe >= len(stripes.weights):
        raise PeerError(f"stripe {stripe} of {len(stripes.weights)}")
    return stripes
