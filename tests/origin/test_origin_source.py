from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

from chappe.core.digest import BLAKE3, XXH3_128, Algorithm
from chappe.core.manifest import LEAF_BYTES, file_digest, snapshot_root
from chappe.errors import PublicationCancelledError, SnapshotChangedError, SnapshotError
from chappe.hop.source import ChunkFiles, ChunkSource, SourceState
from chappe.origin import hashing
from chappe.origin.hashing import OPEN_FILES_MAX, OpenFiles, hash_snapshot
from chappe.origin.scan import Snapshot, scan
from chappe.origin.source import OriginObject
from chappe.payload.safetensors import TensorSpec, build_header
from chappe.wire.manifest import decode_header, decode_page

ID = "a" * 32


def model(directory: Path, payload_bytes: int = 0) -> Snapshot:
    """A model with sidecars, one of them empty, and weights of an odd length."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_bytes(b"{}")
    (directory / "empty.txt").write_bytes(b"")
    head = build_header([TensorSpec("w", "U8", (payload_bytes,))])
    (directory / "model.safetensors").write_bytes(head + xxhash.xxh3_64_digest(b"seed") * (payload_bytes // 8 + 1))
    os.truncate(directory / "model.safetensors", len(head) + payload_bytes)
    return scan(directory)


def plain_root(snapshot: Snapshot, algorithm: Algorithm) -> str:
    """The definition of the root, with no thread and no buffer."""
    digests = []
    for file in snapshot.files:
        data = file.location.read_bytes()
        leaves = [algorithm.once(data[i : i + LEAF_BYTES]) for i in range(0, len(data), LEAF_BYTES)]
        digests.append(file_digest(algorithm, len(data), leaves))
    return snapshot_root(algorithm, snapshot.entries, digests)


class HeldGate:
    """Lets pages through up to `limit` chunks, until it is opened."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def wait(self, chunks: int) -> None:
        if chunks > self.limit:
            self.reached.set()
            await self.opened.wait()


@pytest.mark.parametrize("algorithm", [XXH3_128, BLAKE3])
@pytest.mark.parametrize("chunk_bytes", [1 << 16, 1 << 18, 1 << 20, 1 << 21])
async def test_pages_chunks_and_root_match_the_files(tmp_path: Path, algorithm: Algorithm, chunk_bytes: int) -> None:
    snapshot = model(tmp_path, (17 << 20) + 12_345)
    origin = OriginObject(snapshot, ID, chunk_bytes, algorithm)
    root = await origin.hash()
    assert root == origin.root == plain_root(snapshot, algorithm) == hash_snapshot(snapshot, algorithm, threads=1)
    assert origin.ledger.complete
    assert origin.state is SourceState.OPEN

    manifest = decode_header(origin.header_bytes, ID)
    assert manifest == origin.manifest
    assert origin.pages_held == manifest.pages_total
    payload = []
    for page in range(manifest.pages_total):
        content = decode_page(manifest, origin.page_bytes(page))
        index, digests = content.index, content.digests
        assert index == page
        for chunk, digest in zip(range(*manifest.chunks_of_page(page)), digests, strict=True):
            data = origin.read_chunk(chunk)
            assert algorithm.once(data) == digest
            payload.append(data)
    assert b"".join(payload) == b"".join(f.location.read_bytes() for f in snapshot.files)
    origin.close()


async def test_it_is_a_chunk_source_from_the_start(tmp_path: Path) -> None:
    origin: ChunkSource = OriginObject(model(tmp_path, 1000), ID, 1 << 16)
    assert origin.manifest is not None
    assert origin.manifest.payload_bytes == sum(f.size_bytes for f in origin.manifest.files)
    assert origin.header_bytes
    assert origin.pages_held == 0
    assert origin.ledger.missing() == [(0, 2)]


async def test_pages_are_announced_while_the_rest_is_held_back(tmp_path: Path) -> None:
    snapshot = model(tmp_path, 40 << 20)
    gate = HeldGate(320)
    origin = OriginObject(snapshot, ID, 1 << 16, gate=gate)
    seen = origin.signal.count
    hashing_task = asyncio.create_task(origin.hash())
    await gate.reached.wait()
    assert origin.pages_held == 2
    assert list(origin.ledger.held) == [(0, 256)]
    assert origin.signal.count > seen
    assert not hashing_task.done()
    gate.opened.set()
    assert await hashing_task == hash_snapshot(snapshot)
    assert origin.ledger.complete
    origin.close()


async def test_only_sidecars_and_an_empty_model(tmp_path: Path) -> None:
    snapshot = model(tmp_path)
    origin = OriginObject(snapshot, ID, 1 << 16)
    assert await origin.hash() == plain_root(snapshot, XXH3_128)
    assert origin.ledger.complete


@pytest.mark.parametrize("how", ["truncate", "write", "remove", "replace"])
async def test_a_change_while_hashing_is_never_announced(tmp_path: Path, how: str) -> None:
    snapshot = model(tmp_path, 40 << 20)
    file = tmp_path / "model.safetensors"
    failures: list[str] = []
    gate = HeldGate(128)
    origin = OriginObject(snapshot, ID, 1 << 16, gate=gate, on_failed=failures.append)
    hashing_task = asyncio.create_task(origin.hash())
    await gate.reached.wait()
    if how == "truncate":
        os.truncate(file, 1 << 20)
    elif how == "write":
        with file.open("r+b") as stream:
            stream.seek(1 << 20)
            stream.write(b"torn")
        os.utime(file)
    elif how == "remove":
        file.unlink()
    else:
        copy = tmp_path.parent / "copy"
        copy.write_bytes(file.read_bytes())
        copy.replace(file)
    gate.opened.set()
    with pytest.raises(SnapshotChangedError, match=r"model\.safetensors"):
        await hashing_task
    assert origin.root is None
    assert origin.state is SourceState.DROPPED
    assert [origin.failure] == failures
    with pytest.raises(SnapshotError):
        origin.read_chunk(100)


async def test_a_change_after_hashing_is_seen_when_a_chunk_is_read(tmp_path: Path) -> None:
    origin = OriginObject(model(tmp_path, 1 << 20), ID, 1 << 16)
    await origin.hash()
    os.utime(tmp_path / "model.safetensors", ns=(0, 0))
    with pytest.raises(SnapshotChangedError, match="written to"):
        origin.read_chunk(5)
    os.truncate(tmp_path / "model.safetensors", 100)
    with pytest.raises(SnapshotChangedError, match="its size went from"):
        origin.read_chunk(5)
    origin.close()


async def test_a_chunk_that_is_sent_from_its_file_is_looked_at_before_and_after(tmp_path: Path) -> None:
    snapshot = model(tmp_path, 3 << 20)
    origin = OriginObject(snapshot, ID, 1 << 20)
    await origin.hash()
    assert isinstance(origin, ChunkFiles)
    for chunk in range(origin.manifest.chunks_total):
        with origin.open_chunk(chunk) as span:
            length = origin.manifest.place(chunk).length
            assert os.pread(span.descriptor, length, span.offset) == origin.read_chunk(chunk)
    weights = tmp_path / "model.safetensors"
    last = origin.manifest.chunks_total - 1
    with pytest.raises(SnapshotChangedError), origin.open_chunk(last):
        os.utime(weights, ns=(1, 1))  # written to while it is sent
    entered = False
    with pytest.raises(SnapshotChangedError), origin.open_chunk(last):
        entered = True
    assert not entered
    origin.close()


async def test_a_rejected_chunk_is_read_again_and_a_wrong_one_ends_the_object(tmp_path: Path) -> None:
    failures: list[str] = []
    origin = OriginObject(model(tmp_path, 1 << 20), ID, 1 << 16, on_failed=failures.append)
    await origin.hash()
    assert origin.recheck([0, 3, 16]) == []
    assert failures == []

    file = tmp_path / "model.safetensors"
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(200_000)
        stream.write(b"rot")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as bit rot would leave it
    wrong = origin.manifest.chunks_of_file(2)[0] + 200_000 // (1 << 16)
    seen = origin.signal.count
    assert origin.recheck([wrong - 1, wrong]) == [wrong]
    assert wrong not in origin.ledger.held
    assert origin.state is SourceState.DROPPED
    assert origin.signal.count > seen
    assert len(failures) == 1
    assert "changed after it was hashed" in failures[0]


async def test_closing_while_hashing_ends_it(tmp_path: Path) -> None:
    gate = HeldGate(128)
    failures: list[str] = []
    origin = OriginObject(model(tmp_path, 40 << 20), ID, 1 << 16, gate=gate, on_failed=failures.append)
    hashing_task = asyncio.create_task(origin.hash())
    await gate.reached.wait()
    origin.close()
    origin.close()
    gate.opened.set()
    with pytest.raises(PublicationCancelledError):
        await hashing_task
    assert failures == []


async def test_cancelling_the_hash_drops_the_object(tmp_path: Path) -> None:
    gate = HeldGate(128)
    origin = OriginObject(model(tmp_path, 40 << 20), ID, 1 << 16, gate=gate)
    hashing_task = asyncio.create_task(origin.hash())
    await gate.reached.wait()
    hashing_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hashing_task
    assert origin.state is SourceState.DROPPED


def test_hashing_a_snapshot_that_changed_is_refused(tmp_path: Path) -> None:
    snapshot = model(tmp_path, 1 << 20)
    os.utime(tmp_path / "config.json", ns=(0, 0))
    with pytest.raises(SnapshotChangedError, match=r"config\.json"):
        hash_snapshot(snapshot)


def test_reading_stays_two_spans_a_thread_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = model(tmp_path, 200 << 10)
    begun: list[object] = []
    monkeypatch.setattr(hashing, "SPAN_BYTES", 1 << 13)
    with hashing.SnapshotHasher(snapshot, threads=2) as hasher:
        real = hasher._hash
        monkeypatch.setattr(hasher, "_hash", lambda span: (begun.append(span), real(span))[1])
        results = hasher.results()
        next(results).result()
        assert len(begun) <= 5
        assert len(list(hashing.spans_of(snapshot.files))) > 20


def test_open_files_are_few_and_stay_open_while_used(tmp_path: Path) -> None:
    for i in range(OPEN_FILES_MAX + 1):
        (tmp_path / f"{i:03}.safetensors").write_bytes(build_header([]))
    files = OpenFiles(scan(tmp_path).files)
    before = len(os.listdir("/proc/self/fd"))
    first = files.get(0)
    for i in range(1, OPEN_FILES_MAX + 1):
        files.get(i)
    assert len(os.listdir("/proc/self/fd")) == before + OPEN_FILES_MAX + 1
    assert os.pread(first.descriptor, 8, 0) == build_header([])[:8]
    del first
    assert len(os.listdir("/proc/self/fd")) == before + OPEN_FILES_MAX
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(SnapshotError, match="has ended"):
        files.get(0)


def test_memory_does_not_grow_with_the_payload(tmp_path: Path) -> None:
    """The peak of a process that hashes 1 GiB (sparse), against one that hashes 1 MiB."""
    script = (
        "import asyncio, resource, sys; from pathlib import Path;"
        "from chappe.origin.scan import scan; from chappe.origin.source import OriginObject\n"
        "async def run():\n"
        "    origin = OriginObject(scan(Path(sys.argv[1])), 'a' * 32, 1 << 16)\n"
        "    await origin.hash()\n"
        "    for chunk in range(origin.manifest.chunks_total): origin.read_chunk(chunk)\n"
        "asyncio.run(run()); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks_kib = []
    for payload_bytes in (1 << 20, 1 << 30):
        file = tmp_path / f"{payload_bytes}.safetensors"
        head = build_header([TensorSpec("w", "U8", (payload_bytes,))])
        file.write_bytes(head)
        os.truncate(file, len(head) + payload_bytes)
        run = subprocess.run([sys.executable, "-c", script, str(file)], check=True, capture_output=True, text=True)
        peaks_kib.append(int(run.stdout))
    assert peaks_kib[1] - peaks_kib[0] < 32 << 10, peaks_kib
