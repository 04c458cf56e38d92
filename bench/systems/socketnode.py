"""A node of the bare-socket chains, in its namespace: `source FILE CHILD...` or `relay FILE SIZE LISTEN [CHILD]`."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

BLOCK_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 60.0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _connect(child: str) -> socket.socket:
    peer = socket.create_connection(_address(child), CONNECT_TIMEOUT_S)
    peer.settimeout(None)
    return peer


def _feed(child: str, file: Path) -> None:
    with _connect(child) as peer, file.open("rb") as source:
        peer.sendfile(source)


def source(file: Path, children: list[str]) -> None:
    """The file to every child at once, a thread and a stream for each."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    threads = [threading.Thread(target=_feed, args=(child, file)) for child in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def relay(file: Path, size: int, listen: str, child: str | None) -> None:
    """What has come is stored and sent on, before more is read."""
    with socket.create_server(_address(listen)) as server, file.open("wb", buffering=0) as copy:
        print("ready", flush=True)
        parent, _ = server.accept()
        peer = _connect(child) if child is not None else None
        buffer, left = memoryview(bytearray(BLOCK_BYTES)), size
        while left > 0:
            count = parent.recv_into(buffer)
            if count == 0:
                raise SystemExit(f"the parent ended with {left} bytes to come")
            copy.write(buffer[:count])
            left -= count
            if left == 0:
                print("done", time.monotonic(), flush=True)
            if peer is not None:
                peer.sendall(buffer[:count])
        if peer is not None:
            peer.close()


def main() -> None:
    role, file, *rest = sys.argv[1:]
    if role == "source":
        source(Path(file), rest)
    else:
        relay(Path(file), int(rest[0]), rest[1], rest[2] if len(rest) > 2 else None)
    sys.stdin.read()


if __name__ == "__main__":
    main()
