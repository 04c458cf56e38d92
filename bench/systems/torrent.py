"""What the two BitTorrent clients share: the torrent, and the answer of a tracker that knows everybody beforehand.

python -m bench.systems.torrent ADDRESS FILE PORT    a tracker in its namespace: every announce gets FILE
"""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = 6881
TRACKER_PORT = 6969
PIECE_BYTES = 64 << 10
Bencoded = int | bytes | str | list["Bencoded"] | dict[str, "Bencoded"]


def bencode(value: Bencoded) -> bytes:
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"%d:%b" % (len(value), value)
    if isinstance(value, list):
        return b"l" + b"".join(map(bencode, value)) + b"e"
    return b"d" + b"".join(bencode(key) + bencode(value[key]) for key in sorted(value)) + b"e"


def make_torrent(payload: Path, tracker: str | None, torrent: Path, piece_bytes: int = PIECE_BYTES) -> None:
    """A single-file torrent (version 1: pieces by SHA-1), private, so that nobody looks for peers elsewhere."""
    digests = bytearray()
    with payload.open("rb") as file:
        while piece := file.read(piece_bytes):
            digests += hashlib.sha1(piece, usedforsecurity=False).digest()
    info: Bencoded = {
        "length": payload.stat().st_size,
        "name": payload.name,
        "piece length": piece_bytes,
        "pieces": bytes(digests),
        "private": 1,
    }
    whole: dict[str, Bencoded] = {"info": info} | ({} if tracker is None else {"announce": tracker})
    torrent.write_bytes(bencode(whole))


def tracker_answer(addresses: Sequence[str]) -> bytes:
    """The compact list of all peers; nobody needs to ask again."""
    peers = b"".join(socket.inet_aton(address) + PORT.to_bytes(2, "big") for address in addresses)
    return bencode({"interval": 1800, "complete": 1, "incomplete": len(addresses) - 1, "peers": peers})


def main() -> None:
    address, answer, port = sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer((address, port), Handler) as server:
        print("ready", server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
