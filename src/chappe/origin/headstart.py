"""What somebody waits for is made first: hashing the full object gives way until the first chunks of a delta can leave.

Both read the whole snapshot with all cores and need Python's lock, and the root is needed last of all: of a delta of
128 MiB on two cores the first chunks left 60 ms later for it, a fifth of its time on a link of 20 Mbit/s. Not longer
than a moment: where little changes no chunk leaves before all is compared.
"""

from __future__ import annotations

import asyncio
import contextlib

HEAD_START_S = 0.1
"""Time to encode some 200 MB, and nothing to whoever waits for the full object."""


class HeadStart:
    """Of one publication, on the event loop."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._over.set()

    def begin(self) -> None:
        """Chunks that are being made are waited for."""
        self._over.clear()

    def end(self) -> None:
        """The first can leave, or all have been made. Once or often."""
        self._over.set()

    async def wait(self) -> None:
        """For whoever gives way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START_S):
                await self._over.wait()
