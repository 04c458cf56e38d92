"""The child's end of a data connection that its parent has dialled: let in by the listener, read as any other."""

from __future__ import annotations

import socket
from collections.abc import Callable

from chappe.hop.tcp_receive import HANDSHAKE_S, FrameTaker, TcpInlet, TcpRoute
from chappe.wire.tcp_frames import TAKEN


class TakenInlet(TcpInlet):
    """Takes over the socket, which is a blocking one."""

    def __init__(self, connection: socket.socket, taker: FrameTaker, on_change: Callable[[], None]) -> None:
        """Says at once that it is taken."""
        self._taken = connection
        super().__init__(TcpRoute("", None, ""), 0, b"", taker, on_change)

    def _unstarted(self, problem: OSError) -> None:
        self._taken.close()
        super()._unstarted(problem)

    def _connect(self) -> socket.socket:
        connection = self._taken
        try:
            self._adopt(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(HANDSHAKE_S)
            connection.sendall(TAKEN)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection
