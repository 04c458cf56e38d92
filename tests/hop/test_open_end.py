"""An object that travels while it is being made: nobody knows its end before the last page says it.

| happens                                             | then |
|-----------------------------------------------------|------|
| chunks, then the last page                          | applied as they come; complete when the end is here |
| the store is opened again before the end is known   | what is here is held, the rest comes |
| ... between the last page and its file's new length | likewise |
| ... with torn chunks                                | those are fetched again |
| the disk is full, or fails, at the last page        | told; the page is taken when it comes again |
| a last page that cannot be true, a second one       | ManifestError, nothing is changed |
| a parent ends the object early                      | DeltaError: it must come as another object |
| a parent says COMPLETE before the end is known      | a violation of the protocol |
| hops, over gRPC and TCP, a child that comes late    | cut-through; complete when the origin is |
| stripes                                             | likewise |
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from chappe.core.events import ObjectState
from chappe.core.manifest import CHUNK_BYTES_PLAIN, DELTA_FILE, FileEntry
from chappe.core.reasons import ParentLossReason
from chappe.core.stripemap import StripeMap
from chappe.errors import DeltaError, DiskFullError, ManifestError
from chappe.hop.objects import StoredObject
from chappe.hop.receive import Receiver
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory
from chappe.v1.relay_pb2 import End, EndReason
from chappe.wire.frames import Reply
from chappe.wire.manifest import encode_page
from tests.hop.deltamodels import compressed_model, delta_model, files_of, full_model, with_bytes
from tests.hop.fakes import MemoryObject, MemoryOrigin, Node, build_request, start_node, token, until
from tests.hop.storekit import FaultyDisk, Model, abandon, receive, tree

BASE = full_model(files_of(1), f"{1:032x}")
TARGET = full_model(files_of(1, step=30), f"{2:032x}")
DELTA = delta_model(BASE, TARGET, f"{4:032x}").delta
COMPRESSED = compressed_model(TARGET, f"{5:032x}")
PAGES = COMPRESSED.manifest.pages_total
PER_PAGE = COMPRESSED.manifest.chunks_per_page
TOTAL = COMPRESSED.manifest.chunks_total


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> Store:
    return Store.open(tmp_path / "store", disk)


def begin(store: Store, model: Model, pages: int) -> StoredObject:
    """The header, and the first pages with their chunks."""
    held = store.create(model.object_id)
    held.put_header(model.header)
    go_on(store, held, model, 0, pages)
    return held


def go_on(store: Store, held: StoredObject, model: Model, start: int, stop: int) -> None:
    for page in range(start, stop):
        held.put_page(model.pages[page])
        held.put_chunks(model.chunks(range(*model.manifest.chunks_of_page(page))))
        assert store.apply_ahead(held)


# ---- the store ----


@pytest.mark.parametrize("model", [COMPRESSED, DELTA], ids=["compressed", "delta"])
def test_it_is_complete_when_its_end_is_known(store: Store, model: Model) -> None:
    receive(store, BASE)
    store.land(BASE.object_id, 1, BASE.root)
    last = model.manifest.pages_total - 1
    held = begin(store, model, last)
    first_of_last = last * model.manifest.chunks_per_page
    assert (held.ledger.total, held.ledger.complete, held.holding().state) == (None, False, ObjectState.RECEIVING)
    assert held.holding().chunks_total is None
    assert held.manifest is not None
    assert held.manifest.open_end
    assert held.ledger.missing() == [(first_of_last, 1 << 63)]
    held.put_page(model.pages[last])
    assert (held.ledger.total, held.ledger.complete) == (model.manifest.chunks_total, False)
    assert held.manifest == model.manifest
    held.put_page(model.pages[last])  # of another parent
    held.put_chunks(model.chunks(reversed(range(first_of_last, model.manifest.chunks_total))))
    assert store.apply_ahead(held)
    assert held.ledger.complete
    assert [held.page_bytes(page) for page in range(last + 1)] == model.pages  # as they came
    assert tree(store.land(model.object_id, 2, TARGET.root).path) == TARGET.files
    assert verify_directory(store.layout.root).ok
    store.close()


@pytest.mark.parametrize("pages", [1, PAGES - 1, PAGES])
def test_the_next_process_goes_on(tmp_path: Path, store: Store, pages: int) -> None:
    held = begin(store, COMPRESSED, pages)
    held.flush()
    store._appliers.close()  # its threads end with the process
    abandon(store)
    again = Store.open(tmp_path / "store")
    held = again.objects()[COMPRESSED.object_id]
    assert not held.ledger.held
    held.recover()
    assert held.ledger.held.ranges() == ((0, min(pages * PER_PAGE, TOTAL)),)
    assert held.ledger.total == (TOTAL if pages == PAGES else None)
    go_on(again, held, COMPRESSED, pages, PAGES)
    assert tree(again.land(COMPRESSED.object_id, 1, TARGET.root).path) == TARGET.files
    again.close()


def test_killed_between_the_last_page_and_the_new_length(tmp_path: Path, store: Store, disk: FaultyDisk) -> None:
    held = begin(store, COMPRESSED, PAGES - 1)
    held.flush()
    disk.fail(["resize"], errno.EIO)
    with pytest.raises(Exception, match="a page of object"):
        held.put_page(COMPRESSED.pages[-1])
    disk.heal()
    store._appliers.close()
    abandon(store)
    again = Store.open(tmp_path / "store")
    held = again.objects()[COMPRESSED.object_id]
    held.recover()
    assert (held.ledger.total, held.ledger.complete) == (TOTAL, False)
    held.put_chunks(COMPRESSED.chunks())
    assert tree(again.land(COMPRESSED.object_id, 1, TARGET.root).path) == TARGET.files
    again.close()


def test_torn_chunks_are_fetched_again(tmp_path: Path, store: Store) -> None:
    held = begin(store, COMPRESSED, 3)
    held.flush()
    store._appliers.close()
    abandon(store)
    path = store.layout.object(COMPRESSED.object_id).files / DELTA_FILE
    with path.open("r+b") as file:
        file.seek(5 * CHUNK_BYTES_PLAIN)
        file.write(bytes(100))
        file.truncate(11 * CHUNK_BYTES_PLAIN + 10)  # a power failure: the last chunk got some of its bytes
    again = Store.open(tmp_path / "store")
    held = again.objects()[COMPRESSED.object_id]
    held.recover()
    assert held.ledger.held.ranges() == ((0, 5), (6, 11))
    held.put_chunks(COMPRESSED.chunks([5, 11]))
    go_on(again, held, COMPRESSED, 3, PAGES)
    assert tree(again.land(COMPRESSED.object_id, 1, TARGET.root).path) == TARGET.files
    again.close()


def test_a_full_disk_at_the_last_page(store: Store, disk: FaultyDisk) -> None:
    held = begin(store, COMPRESSED, PAGES - 1)
    disk.fail(["resize"])
    with pytest.raises(DiskFullError):
        held.put_page(COMPRESSED.pages[-1])
    disk.heal()
    go_on(store, held, COMPRESSED, PAGES - 1, PAGES)
    assert tree(store.land(COMPRESSED.object_id, 1, TARGET.root).path) == TARGET.files
    store.close()


def last_page(index: int, digests: int, end_bytes: int) -> bytes:
    return encode_page(index, [bytes(16)] * digests, end_bytes)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (last_page(1, 1, 1 << 40), "at most"),
        (last_page(1, 1, 4 * CHUNK_BYTES_PLAIN), "cannot be the last"),  # ends before this page
        (last_page(1, 1, 5 * CHUNK_BYTES_PLAIN + 1), "cannot be the last"),
        (last_page(1, 2, 5 * CHUNK_BYTES_PLAIN), "cannot be the last"),
        (last_page(1, 0, 4 * CHUNK_BYTES_PLAIN + 1), "cannot be the last"),
        (last_page(2, 1, 8 * CHUNK_BYTES_PLAIN + 1), "before page"),
        (last_page(1, 3, 0), "bytes of digests"),  # short, and not the last
        (encode_page(1, [bytes(17)], 4 * CHUNK_BYTES_PLAIN + 1), "bytes of digests"),
    ],
    ids=["beyond", "before", "more", "fewer", "none", "early", "short", "odd"],
)
def test_last_pages_that_cannot_be_true(store: Store, page: bytes, why: str) -> None:
    held = begin(store, COMPRESSED, 1)
    with pytest.raises(ManifestError, match=why):
        held.put_page(page)
    assert (held.pages_held, held.ledger.total) == (1, None)
    go_on(store, held, COMPRESSED, 1, PAGES)
    with pytest.raises(ManifestError, match=r"differs|cannot|does not|of an object of"):
        held.put_page(last_page(PAGES - 1, 1, TOTAL * CHUNK_BYTES_PLAIN))
    assert held.ledger.complete
    store.close()


def test_an_end_in_a_full_object_is_no_end(store: Store) -> None:
    held = store.create(BASE.object_id)
    held.put_header(BASE.header)
    digests = [bytes(16)] * BASE.manifest.chunks_per_page
    with pytest.raises(ManifestError, match="which it does not"):
        held.put_page(encode_page(0, digests, 16 * CHUNK_BYTES_PLAIN))
    assert held.ledger.total == BASE.manifest.chunks_total
    store.close()


def test_a_parent_that_ends_it_early_gives_nothing_wrong(store: Store) -> None:
    """It costs the full object, and whoever reports that end is found out by the coordinator."""
    data = COMPRESSED.files[DELTA_FILE]
    short = with_bytes(COMPRESSED, data[: 6 * CHUNK_BYTES_PLAIN - 100])
    held = receive(store, short)
    assert held.ledger.complete
    with pytest.raises(DeltaError, match=r"cut short|without its closing"):
        store.land(COMPRESSED.object_id, 1, TARGET.root)
    receive(store, TARGET)
    assert tree(store.land(TARGET.object_id, 1, TARGET.root).path) == TARGET.files
    store.close()


# ---- hops ----

CHUNK = CHUNK_BYTES_PLAIN
PAYLOAD = os.urandom(10 * CHUNK + 17)


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def chain(stack: AsyncExitStack, source: MemoryOrigin, hops: int) -> list[Node]:
    origin = await start_node(stack, "origin", source)
    return [origin, *[await start_node(stack, f"r{i}") for i in range(hops)]]


async def test_cut_through_and_complete_with_the_origin(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD, most_bytes=1 << 30)
    source.release(8)
    nodes = await chain(stack, source, 3)
    fetches = [asyncio.create_task(node.fetch_from(parent)) for parent, node in pairwise(nodes)]
    for node in nodes[1:]:
        await until(node.object.signal, lambda node=node: len(node.object.ledger.held) == 8)  # type: ignore[misc]
        assert (node.object.ledger.total, node.object.ledger.complete) == (None, False)
    assert not any(fetch.done() for fetch in fetches)
    source.release()
    for fetch, node in zip(fetches, nodes[1:], strict=True):
        assert (await fetch).reason is None
        assert (node.object.ledger.complete, node.object.payload()) == (True, PAYLOAD)
    late = await start_node(stack, "late")
    assert (await late.fetch_from(nodes[1])).reason is None
    assert late.object.payload() == PAYLOAD


async def test_a_child_that_knows_the_end_asks_one_that_does_not(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD, most_bytes=1 << 30)
    source.release()
    behind = MemoryOrigin(PAYLOAD, most_bytes=1 << 30)
    behind.release(8)
    origin, parent = await start_node(stack, "origin", source), await start_node(stack, "p", behind)
    child = await start_node(stack, "c")
    assert (await child.fetch_from(origin)).reason is None
    child.object.ledger.drop(2, 4)
    again = asyncio.create_task(child.fetch_from(parent))
    await until(child.object.signal, lambda: child.object.ledger.complete)
    behind.release()
    assert (await again).reason is None
    assert child.object.payload() == PAYLOAD


async def test_stripes(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD, most_bytes=1 << 30)
    source.release(4)
    origin, child = await start_node(stack, "origin", source), await start_node(stack, "c")
    stripes = StripeMap((1, 1), 1)
    fetches = [
        asyncio.create_task(child.fetch_from(origin, edge={"stripe": n}, stripe=n, stripes=stripes)) for n in range(2)
    ]
    await until(child.object.signal, lambda: len(child.object.ledger.held) == 4)
    source.release()
    for fetch in fetches:
        assert (await fetch).reason is None
    assert (child.object.ledger.complete, child.object.payload()) == (True, PAYLOAD)


async def test_complete_before_the_end_is_known_is_a_violation() -> None:
    source = MemoryOrigin(PAYLOAD, most_bytes=1 << 30)
    sink = MemoryObject()
    assert source.header_bytes is not None
    sink.put_header(source.header_bytes)
    receiver = Receiver(build_request(sink, 0, token("origin", "c")), sink)

    async def read() -> tuple[Reply, int]:
        return End(reason=EndReason.END_REASON_COMPLETE), 1

    end = await receiver.run(read)
    assert end.reason is ParentLossReason.PROTOCOL


def test_the_file_of_the_model_is_what_the_last_page_says() -> None:
    """Or these tests would not be about open ends."""
    assert replace(COMPRESSED.manifest, files=(FileEntry(DELTA_FILE, 1),)).chunks_total == 1
    assert COMPRESSED.header != Model(COMPRESSED.files, COMPRESSED.manifest, COMPRESSED.root).header
    assert PAGES > 4
