"""Data connections that have come before the Fetch which they are for.

    hello ──▶ waits: for `EARLY_S`, silently ──▶ its Fetch comes, from the same host and certificate ──▶ theirs
                     ├── says more, or goes away ─▶ closed
                     ├── nobody asks for it ──────▶ closed
                     └── too many wait already ───▶ not taken in: closed

A child that knows its parent's port dials it beside its Fetch, with a secret of its own choice: the round trips of both
are made at the same time. What waits here costs a socket, no thread and no memory that grows, and nothing has been
sent on it. Whoever fills the room makes others dial a second time, once their Fetch is here: that needs no room.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from dataclasses import dataclass

from chappe.hop.tcp_sockets import certificate_names

log = logging.getLogger(__name__)

EARLY_S = 5.0
"""From the hello to the Fetch, which has left before: a few round trips behind it, however long they are."""
EARLY_MAX = 128
EARLY_OF_A_HOST_MAX = 32


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has opened a data connection and said a secret. Nothing else of it is known to be true."""

    connection: socket.socket
    host: str

    def problem(self, host: str | None, name: str | None) -> str:
        """Why it is not the one that fetches from this host (None: any) under this name. Raises ValueError for a
        certificate that cannot be read."""
        if isinstance(self.connection, ssl.SSLSocket):  # whoever has that key is that node, at all of its addresses
            known = name in certificate_names(self.connection)
            return "" if known else f"its Fetch is from {name!r}, its certificate is not"
        return "" if host is None or _one_host(host, self.host) else f"its Fetch is from {host}"


@dataclass(frozen=True, slots=True)
class _Stay:
    caller: Caller
    timer: asyncio.TimerHandle


class EarlyCallers:
    """By secret. All on the event loop's thread, with non-blocking sockets."""

    def __init__(self) -> None:
        self._stays: dict[bytes, _Stay] = {}
        self._of_host: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._stays)

    def admit(self, secret: bytes, caller: Caller) -> str:
        """Take it over, until `take`. Otherwise why not: it is still the caller's then."""
        if secret in self._stays:
            return "its secret has been said by another"
        if len(self._stays) >= EARLY_MAX or self._of_host[caller.host] >= EARLY_OF_A_HOST_MAX:
            return "too many wait for their Fetch"
        loop = asyncio.get_running_loop()
        timer = loop.call_later(EARLY_S, self._dismiss, secret, f"no Fetch asked for it within {EARLY_S:g} s")
        self._stays[secret] = _Stay(caller, timer)
        self._of_host[caller.host] += 1
        # After its hello the child has nothing to say: what can be read is an end, or nonsense.
        loop.add_reader(caller.connection, self._dismiss, secret, "it said more than its hello, or went away")
        return ""

    def take(self, secret: bytes) -> Caller | None:
        """Whoever has said this secret and is still here: given away once, and the taker's from now on."""
        stay = self._stays.pop(secret, None)
        if stay is None:
            return None
        stay.timer.cancel()
        asyncio.get_running_loop().remove_reader(stay.caller.connection)
        self._of_host[stay.caller.host] -= 1
        if not self._of_host[stay.caller.host]:
            del self._of_host[stay.caller.host]
        return stay.caller

    def close(self) -> None:
        for secret in list(self._stays):
            self._dismiss(secret, "this node stops")

    def _dismiss(self, secret: bytes, why: str) -> None:
        caller = self.take(secret)
        if caller is not None:
            caller.connection.close()
            log.info("a data connection from %s was closed: %s", caller.host, why)


def plain_host(host: str) -> str:
    """One spelling for each address: without a zone, IPv4 as IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _one_host(one: str, other: str) -> bool:
    """They may be. A name may have addresses of both kinds, and gRPC may dial another one than a data connection does:
    what an IPv4 address and an IPv6 address have in common nobody can see, and the secret has to do."""
    if one == other:
        return True
    try:
        first, second = ipaddress.ip_address(one), ipaddress.ip_address(other)
    except ValueError:
        return False
    return first.is_loopback == second.is_loopback and (first.is_loopback or first.version != second.version)
