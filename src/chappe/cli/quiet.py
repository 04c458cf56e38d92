"""gRPC's own log, off in our programs: it prints lines of its C++ sources on stderr before we have said what is wrong.

Of the programs only, not of the library, whose process is somebody else's. `GRPC_VERBOSITY=ERROR` (or any other level
in the environment) has it back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_LEVEL = "GRPC_VERBOSITY"


@contextmanager
def quiet_grpc() -> Iterator[None]:
    """gRPC is to be imported in here: that is when it reads its level. Afterwards the environment is what it was, for
    those that this process starts."""
    if _LEVEL in os.environ:
        yield
        return
    os.environ[_LEVEL] = "NONE"
    try:
        yield
    finally:
        del os.environ[_LEVEL]
