"""Bare TCP over a link: what the kernel makes of it, with nothing of ours in between. Run inside a host's namespace.

    python bench/barestream.py receive ADDRESS PORT STREAMS SECONDS     "ready", then one JSON curve: [[s, bytes], ...]
    python bench/barestream.py send ADDRESS PORT STREAMS                until the receiver has gone

Time counts from the first byte, of all streams together. Only the standard library: it must start anywhere.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import threading
import time

SAMPLE_S = 0.05
BLOCK_BYTES = 1 << 20


def receive(address: str, port: int, streams: int, seconds: float) -> list[tuple[float, int]]:
    """Bytes over time, from the first byte until `seconds` later or the end of all streams."""
    buffer = bytearray(BLOCK_BYTES)
    curve: list[tuple[float, int]] = []
    total, open_streams = 0, 0
    with socket.create_server((address, port), backlog=streams) as server, selectors.DefaultSelector() as selector:
        print("ready", flush=True)
        for _ in range(streams):
            peer, _address = server.accept()
            selector.register(peer, selectors.EVENT_READ)
            open_streams += 1
        started_s = next_s = 0.0
        while open_streams:
            for key, _events in selector.select():
                stream = key.fileobj
                assert isinstance(stream, socket.socket)
                size = stream.recv_into(buffer)
                if not size:
                    selector.unregister(stream)
                    stream.close()
                    open_streams -= 1
                now = time.monotonic()
                if not total:
                    started_s = next_s = now
                total += size
                if now >= next_s:
                    curve.append((now - started_s, total))
                    next_s = now + SAMPLE_S
            if curve and curve[-1][0] >= seconds:
                break
        for key in list(selector.get_map().values()):
            stream = key.fileobj
            assert isinstance(stream, socket.socket)
            stream.close()
    return curve


def send(address: str, port: int, streams: int) -> None:
    """As fast as the link takes it."""
    block = bytes(BLOCK_BYTES)

    def one(peer: socket.socket) -> None:
        with peer:
            try:
                while True:
                    peer.sendall(block)
            except (BrokenPipeError, ConnectionResetError):
                return  # the receiver has seen enough

    peers = [socket.create_connection((address, port)) for _ in range(streams)]
    threads = [threading.Thread(target=one, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    role, address, port, streams, *rest = sys.argv[1:]
    if role == "receive":
        print(json.dumps(receive(address, int(port), int(streams), float(rest[0]))), flush=True)
    else:
        send(address, int(port), int(streams))


if __name__ == "__main__":
    main()
