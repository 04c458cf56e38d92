"""With which peers a node has data connections. One that has failed is left alone for a while: gRPC carries it.

Told to the log once for each parent and reason, not for every fetch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from chappe.clock import boot_now
from chappe.core.effects import PeerRef
from chappe.hop.net import Tls, parse_address
from chappe.hop.tcp_receive import TcpRoute

log = logging.getLogger(__name__)

LEAVE_ALONE_S = 60.0


class TcpRoutes:
    """One per node."""

    def __init__(
        self, tls: Tls | None, *, on: bool = True, streams: int = 1, now: Callable[[], float] = boot_now
    ) -> None:
        """`on` False: never (`--transport grpc`). `streams`: how many one hop should have."""
        self._tls, self._on, self._streams, self._now = tls, on, streams, now
        self._until: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def to(self, parent: PeerRef) -> TcpRoute | None:
        """How its data connections are dialled, None to do without. Raises UsageError for an address that is none."""
        if not self.takes(parent):
            return None
        return TcpRoute.to(parse_address(parent.address), self._tls, parent.name, parent.data_port, self._streams)

    def takes(self, parent: PeerRef) -> bool:
        """Whether one that this parent dials is taken."""
        return self._on and self._now() >= self._until.get(parent.worker_id, 0.0)

    def failed(self, peer: PeerRef, reason: str, *, dialled: bool = False) -> None:
        """A data connection could not be opened, broke, or carried nothing any more. `dialled`: the peer is a child,
        and this node has dialled it."""
        self._until[peer.worker_id] = self._now() + LEAVE_ALONE_S
        if self._said.get(peer.worker_id) != reason:
            self._said[peer.worker_id] = reason
            log.warning(
                "the payload %s %s goes over gRPC: its data connection failed (%s). Open the port of its "
                "--data-listen, or start it with --data-listen off",
                "to" if dialled else "from",
                peer.name,
                reason,
            )
