"""`chappe` of a release without stripes, as a publisher: it says nothing of them when it joins, and the map that a
child asks by is a field that it does not know."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from chappe.cli.main import main
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.hop import course
from chappe.origin.session import OriginSession
from chappe.v1 import coordinator_pb2 as pb

_requests = OriginSession._requests


async def _old_requests(session: OriginSession, outbox: asyncio.Queue[pb.JoinRequest]) -> AsyncIterator[pb.JoinRequest]:
    async for request in _requests(session, outbox):
        if request.HasField("hello"):
            request.hello.ClearField("stripes")
        yield request


def _decode_stripes(*_: Any) -> StripeMap:
    return PLAIN


if __name__ == "__main__":
    OriginSession._requests = _old_requests  # type: ignore[method-assign]
    course.decode_stripes = _decode_stripes  # type: ignore[attr-defined]
    sys.exit(main())
