"""A delta's file is served while it is written.

| happens                                        | then |
|------------------------------------------------|------|
| bytes come in any portions                     | equal windows, full pages in order, a last page that is not empty |
| blocks are still being compared                | the pages of those before have been told |
| more than it may have                          | SnapshotError, also from the closing chunk alone |
| the file is not what was written, or is gone   | the object fails, once, and is dropped |
| a thread sends from it while it is closed      | it sends on |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from chappe.core.digest import XXH3_128
from chappe.core.manifest import DELTA_FILE, FileEntry, Manifest, ObjectKind
from chappe.errors import SnapshotError
from chappe.hop.source import SourceState
from chappe.origin.blocksources import MakeBlocks, Whole
from chappe.origin.deltas import BESIDE_BYTES_MAX, DeltaFile, chunk_bytes_of
from chappe.origin.growing import GrowingObject, pages_of
from chappe.origin.scan import Snapshot, scan
from chappe.origin.windows import Windows
from chappe.payload.plan import DeltaPlan
from chappe.wire.manifest import decode_header, decode_page

KIB, MIB = 1 << 10, 1 << 20
ROOT = "xxh3_128:" + "0" * 32


# ---- windows ----


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40)), st.binary(min_size=1, max_size=40), st.integers(1, 16), st.integers(1, 4))
def test_windows_are_those_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], last: bytes, window: int, per_page: int
) -> None:
    path = tmp_path_factory.mktemp("windows") / "file"
    pages: list[list[bytes]] = []
    with path.open("xb", buffering=0) as file:
        windows = Windows(file, XXH3_128, window, per_page, pages.append)
        for part in parts:
            windows.write(part)
            assert len(pages) == windows.size_bytes // window // per_page  # as soon as they are full
        last_page = windows.finish(last)
    data = path.read_bytes()
    assert (data, windows.size_bytes) == (b"".join(parts) + last, len(data))
    assert all(len(page) == per_page for page in pages)
    assert 1 <= len(last_page) <= per_page
    expected = [XXH3_128.once(data[at : at + window]) for at in range(0, len(data), window)]
    assert [digest for page in (*pages, last_page) for digest in page] == expected


# ---- the object ----


def manifest(most_bytes: int, chunks_per_page: int = 2) -> Manifest:
    return Manifest(
        "1" * 32,
        XXH3_128,
        64 * KIB,
        (FileEntry(DELTA_FILE, most_bytes),),
        (),
        chunks_per_page,
        kind=ObjectKind.FULL_COMPRESSED,
        target_bytes=10 * MIB,
        open_end=True,
    )


class Growing:
    """A file of five chunks and a half, of which the first four are announced."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "delta"
        self.data = os.urandom(5 * 64 * KIB + 100)
        self.path.write_bytes(self.data)
        self.digests = [XXH3_128.once(self.data[at : at + 64 * KIB]) for at in range(0, len(self.data), 64 * KIB)]
        self.failures: list[str] = []
        self.object = GrowingObject(self.path, manifest(8 * MIB), self.failures.append)
        self.object.announce(self.digests[:2])
        self.object.announce(self.digests[2:4])


def test_what_is_announced_is_served_and_the_last_page_ends_it(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    served = growing.object
    seen = served.signal.count
    header = decode_header(served.header_bytes, served.object_id)
    assert (header, header.payload_bytes, header.open_end) == (served.manifest, 8 * MIB, True)
    assert (served.ledger.held.ranges(), served.ledger.total, served.ledger.complete) == (((0, 4),), None, False)
    assert decode_page(header, served.page_bytes(1)).closed is None
    served.close_end(growing.digests[4:], len(growing.data))
    assert served.signal.count > seen
    assert (served.ledger.total, served.ledger.complete) == (6, True)
    last = decode_page(header, served.page_bytes(2))
    assert last.digests == growing.digests[4:]
    assert (
        last.closed
        == served.manifest
        == replace(header, files=(FileEntry(DELTA_FILE, len(growing.data)),), open_end=False)
    )
    assert b"".join(map(served.read_chunk, range(6))) == growing.data
    with served.open_chunk(5) as span:
        assert os.pread(span.descriptor, 1000, span.offset) == growing.data[-100:]
    assert served.header_bytes == GrowingObject(growing.path, header, growing.failures.append).header_bytes
    assert growing.failures == []


@pytest.mark.parametrize("how", ["altered", "cut"])
def test_a_file_that_is_not_what_was_written_ends_the_object(tmp_path: Path, how: str) -> None:
    growing = Growing(tmp_path)
    served = growing.object
    assert served.recheck([0, 3, 9]) == []  # a child that doubts without reason, or doubts what is not here
    if how == "cut":
        os.truncate(growing.path, 3 * 64 * KIB + 1)
        with pytest.raises(OSError, match="cut short"):
            served.read_chunk(3)
    else:
        with growing.path.open("r+b") as file:
            file.seek(3 * 64 * KIB)
            file.write(b"other")
    assert served.recheck([2, 3]) == [3]
    assert (served.state, 3 in served.ledger.held) == (SourceState.DROPPED, False)
    assert growing.failures == [f"{growing.path} is not what was written to it"]
    served.fail("again")
    served.announce(growing.digests[4:])  # a thread has told it before it heard
    served.close_end(growing.digests[4:], len(growing.data))
    assert (len(growing.failures), served.pages_held, served.ledger.total) == (1, 2, None)


def test_closing_does_not_cut_a_sender(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    with growing.object.open_chunk(1) as span:
        growing.path.unlink()
        growing.object.close()
        growing.object.close()
        assert os.pread(span.descriptor, 10, span.offset) == growing.data[64 * KIB : 64 * KIB + 10]
    with pytest.raises(OSError, match="not served"):
        growing.object.read_chunk(1)
    with pytest.raises(OSError, match="not served"), growing.object.open_chunk(1):
        pass
    assert growing.failures == []


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GrowingObject(tmp_path / "none", manifest(MIB), print)


# ---- the file ----


def noise(folder: Path, blocks: int) -> Snapshot:
    folder.mkdir()
    data = np.random.default_rng(1).integers(0, 256, blocks << 20, dtype=np.uint8)
    save_file({"noise": data}, folder / "model.safetensors")
    return scan(folder)


def full(source: Snapshot) -> Manifest:
    return Manifest("2" * 32, XXH3_128, 1 << 20, source.entries, source.tensors)


def test_pages_are_told_while_later_blocks_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = noise(tmp_path / "model", 4)
    told, opened, go_on = threading.Semaphore(0), threading.Event(), threading.Event()
    whole = Whole.opened

    @contextmanager
    def held(self: Whole) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
        def later(blocks: MakeBlocks) -> MakeBlocks:
            def made(algorithm, mapper, hands):  # type: ignore[no-untyped-def]
                for block in blocks(algorithm, mapper, hands):
                    if block.ordinal == 3:
                        assert go_on.wait(60)
                    yield block

            return made

        with whole(self) as (plan, blocks):
            yield plan, later(blocks)

    monkeypatch.setattr(Whole, "opened", held)
    file = DeltaFile(Whole(source), full(source), tmp_path)
    pages: list[list[bytes]] = []

    def on_page(digests: list[bytes]) -> None:
        pages.append(digests)
        told.release()

    file.on_open, file.on_page = opened.set, on_page
    thread = threading.Thread(target=file.encode)
    thread.start()
    assert opened.wait(60)
    for _ in range(6):  # two blocks of noise are 2 MiB: seven pages of 256 KiB, and what the packer holds
        assert told.acquire(timeout=60)
    assert (thread.is_alive(), file.payload_bytes < 4 * MIB) == (True, True)
    go_on.set()
    thread.join()
    file.close(ROOT)
    served = GrowingObject(file.path, file.object_manifest("3" * 32), print)
    for page in pages:
        served.announce(page)
    served.close_end(file.last_page, file.payload_bytes)
    data = file.path.read_bytes()
    assert (served.ledger.complete, served.manifest.payload_bytes) == (True, len(data))
    assert b"".join(map(served.read_chunk, range(served.manifest.chunks_total))) == data
    assert [served.manifest.algorithm.once(served.read_chunk(c)) for c in range(served.manifest.chunks_total)] == [
        digest for page in (*pages, file.last_page) for digest in page
    ]
    assert served.recheck(range(served.manifest.chunks_total)) == []
    file.discard()


def test_a_prologue_of_many_pages_is_told_once_the_file_is_open(tmp_path: Path) -> None:
    """As of a model of very many tensors: what names them does not fit into the first pages of a small delta."""
    names = np.random.default_rng(1).bytes(64 * 3000)
    tensors = {names[at : at + 64].hex(): np.zeros(1, np.uint8) for at in range(0, len(names), 64)}
    (tmp_path / "model").mkdir()
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    source = scan(tmp_path / "model")
    file = DeltaFile(Whole(source), full(source), tmp_path, chunk_bytes=16 * KIB)
    told: list[str] = []
    file.on_open, file.on_page = (lambda: told.append("open")), (lambda _: told.append("page"))
    file.encode()
    file.close(ROOT)
    served = file.object_manifest("3" * 32).closed(told.count("page"), len(file.last_page), file.payload_bytes)
    assert (told[0], told.count("open"), served.pages_total > 3) == ("open", 1, True)
    file.discard()


def test_more_than_it_may_have_is_given_up(tmp_path: Path) -> None:
    source = noise(tmp_path / "model", 4)
    file = DeltaFile(Whole(source), full(source), tmp_path, share_max=0.5)
    told: list[list[bytes]] = []
    file.on_page = told.append
    with pytest.raises(SnapshotError, match="compressed, has more than 50% of the bytes"):
        file.encode()
    most = file.object_manifest("3" * 32).payload_bytes
    assert 2 * MIB < most <= 2 * MIB + BESIDE_BYTES_MAX + 64 * KIB
    assert 0 < len(told) * 256 * KIB <= most
    file.discard()
    file = DeltaFile(Whole(source), full(source), tmp_path)  # noise does not get smaller, and not much larger
    file.encode()
    file._bytes_max = file.payload_bytes
    with pytest.raises(SnapshotError, match="more than"):
        file.close(ROOT)
    file.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_first_page_waits_for_few_blocks_where_chunks_are_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "model").mkdir()
    save_file(
        {f"w{i:02}": rng.integers(0, 256, 8 * KIB, dtype=np.uint8) for i in range(24)},
        tmp_path / "model" / "model.safetensors",
    )
    source = scan(tmp_path / "model")
    made: list[int] = []
    at_first: list[int] = []

    class Counted:
        base_root = ""

        @contextmanager
        def opened(self) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
            def counted(algorithm, _mapper, _hands):  # type: ignore[no-untyped-def]
                for block in blocks(algorithm, map):
                    made.append(block.ordinal)
                    yield block

            with Whole(source).opened() as (plan, blocks):
                yield plan, counted

    file = DeltaFile(Counted(), full(source), tmp_path, chunk_bytes=16 * KIB)
    file.on_page = lambda _: at_first.append(len(made))
    file.encode()
    file.close(ROOT)
    file.discard()
    assert at_first[0] <= 11  # of 8 KiB, for a page of 64 KiB: the container's chunks are no larger than those


@pytest.mark.parametrize(("chunk_bytes", "chunks"), [(16 * KIB, 4), (64 * KIB, 4), (256 * KIB, 1), (MIB, 1)])
def test_a_page_is_little_enough_to_leave_soon(chunk_bytes: int, chunks: int) -> None:
    assert pages_of(chunk_bytes) == chunks


@pytest.mark.parametrize(
    ("expected_bytes", "chunk_bytes"),
    [(0, 1 << 14), (900_000, 1 << 14), (2 << 20, 1 << 15), (4 << 20, 1 << 16), (100 << 30, 1 << 16)],
)
def test_a_small_delta_has_small_chunks(expected_bytes: int, chunk_bytes: int) -> None:
    assert chunk_bytes_of(expected_bytes) == chunk_bytes
