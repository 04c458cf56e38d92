"""Writing to a peer that is gone must be an error of the call, and never the end of the process.

Python ignores SIGPIPE when it starts, but a trainer that this is a part of may have given it its default back (so that
it ends quietly in a pipe to `head`), and then the kernel kills it: `send` could be told not to raise the signal, but
not `sendfile`, OpenSSL, or asyncio. The signal goes to the thread that writes: where it is blocked there, nothing
happens. gRPC's own sockets never raise it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGPIPE = frozenset({signal.SIGPIPE})


def block_sigpipe() -> None:
    """For good, in a thread of our own, and in those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGPIPE)


@contextmanager
def without_sigpipe() -> Iterator[None]:
    """For one call, in somebody else's thread. One that came of it is taken away."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGPIPE)
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            signal.sigtimedwait(_SIGPIPE, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
