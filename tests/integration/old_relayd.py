"""`relayd` of a release without stripes, for a fleet in which one is older: it says nothing of them when it joins, and
the map of an edge or of a request is a field that it does not know."""

from __future__ import annotations

import sys
from typing import Any

import relayd.relay
from relayd.__main__ import main

from chappe.core.stripemap import PLAIN, StripeMap
from chappe.hop import asked, client, course
from chappe.v1 import coordinator_pb2 as pb
from chappe.wire import relay_messages


def _encode_hello(*arguments: Any) -> pb.JoinRequest:
    request = relay_messages.encode_hello(*arguments)
    request.hello.ClearField("stripes")
    return request


def _decode_stripes(*_: Any) -> StripeMap:
    return PLAIN


if __name__ == "__main__":
    relayd.relay.encode_hello = _encode_hello
    for module in (relay_messages, asked, client, course):
        module.decode_stripes = _decode_stripes  # type: ignore[attr-defined]
    client.encode_stripes = lambda _: None  # type: ignore[attr-defined]
    sys.exit(main())
