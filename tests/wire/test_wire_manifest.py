from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.digest import BLAKE3, XXH3_128
from chappe.core.manifest import DELTA_FILE, FileEntry, Manifest, ObjectKind, TensorEntry
from chappe.errors import ChappeError, ManifestError, SnapshotError, UnsafePathError
from chappe.v1 import relay_pb2 as pb
from chappe.wire import manifest as wire

ID = "0123456789abcdef" * 2
GRPC_MESSAGE_BYTES_MAX = 4 << 20


def make(algorithm: object = XXH3_128, **changes: object) -> Manifest:
    fields: dict[str, object] = {
        "object_id": ID,
        "algorithm": algorithm,
        "chunk_bytes": 1 << 16,
        "files": (FileEntry("config.json", 5), FileEntry("empty", 0), FileEntry("model.safetensors", 10_000_000)),
        "tensors": (TensorEntry("s", "F32", (), 2, 64, 68), TensorEntry("e", "BF16", (0, 4), 2, 68, 68)),
    }
    return Manifest(**(fields | changes))  # type: ignore[arg-type]


def header(**changes: object) -> pb.Header:
    message = pb.Header()
    message.ParseFromString(wire.encode_header(make()))
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def decode(message: Message) -> Manifest:
    return wire.decode_header(message.SerializeToString(), ID)


@pytest.mark.parametrize("algorithm", [XXH3_128, BLAKE3])
def test_a_header_survives_the_wire(algorithm: object) -> None:
    manifest = make(algorithm, chunks_per_page=17)
    data = wire.encode_header(manifest)
    assert wire.decode_header(data, ID) == manifest
    assert wire.encode_header(wire.decode_header(data, ID)) == data


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"object_id": "f" * 32}, "was asked for"),
        ({"kind": pb.OBJECT_KIND_DELTA}, "a delta object that is not one file"),
        ({"base_root": "xxh3_128:00"}, "with a base"),
        ({"kind": pb.OBJECT_KIND_FULL_COMPRESSED}, "a full-compressed object that is not one file"),
        ({"kind": 0}, "kind unknown"),
        ({"digest_algorithm": "md5"}, "'md5'"),
        ({"payload_bytes": 1}, "1 bytes of payload"),
        ({"snapshot_bytes": 1}, "1 of snapshot"),
        ({"chunk_bytes": 0}, "chunk_bytes 0"),
        ({"chunk_bytes": 100_000}, "power of two"),
        ({"chunk_bytes": 1 << 31}, "power of two"),
        ({"chunks_per_page": 0}, "chunks_per_page 0"),
        ({"chunks_per_page": 5000}, "chunks_per_page 5000"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        decode(header(**changes))


@pytest.mark.parametrize("path", ["../x", "/x", "a\\b", "C:x", "model.safetensors/x", "Config.json", "config.json"])
def test_a_path_from_a_peer_is_checked(path: str) -> None:
    message = header()
    message.files.add(path=path)
    with pytest.raises(UnsafePathError):
        decode(message)


def test_sizes_that_would_overflow_are_refused() -> None:
    message = header()
    message.files[2].size_bytes = 1 << 63
    with pytest.raises(ManifestError, match="out of bounds"):
        decode(message)
    message = header()
    del message.files[:]
    del message.tensors[:]
    with pytest.raises(ManifestError, match="at least one file"):
        decode(message)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (pb.TensorEntry(name="t", dtype="F32", shape=[2], file=2, begin=68, end=72), "4 bytes for 8"),
        (pb.TensorEntry(name="t", dtype="X", shape=[1], file=2, begin=68, end=69), "dtype 'X'"),
        (pb.TensorEntry(name="t", dtype="U8", shape=[1 << 63, 2], file=2, begin=68, end=69), "overflows"),
        (pb.TensorEntry(name="t", dtype="U8", shape=[1], file=2, begin=67, end=68), "overlaps"),
        (pb.TensorEntry(name="t", dtype="U8", shape=[1], file=1, begin=0, end=1), "out of order"),
        (pb.TensorEntry(name="t", dtype="U8", shape=[1], file=3, begin=0, end=1), "outside its file"),
        (pb.TensorEntry(name="t", dtype="U8", shape=[2], file=2, begin=9_999_999, end=10_000_001), "outside its file"),
    ],
)
def test_a_tensor_that_cannot_be_true_is_refused(tensor: pb.TensorEntry, message: str) -> None:
    hostile = header()
    hostile.tensors.append(tensor)
    with pytest.raises(ManifestError, match=message):
        decode(hostile)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    with pytest.raises(ChappeError):
        wire.decode_header(data, ID)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_a_damaged_header_never_gets_another_exception(at: int, noise: bytes) -> None:
    data = bytearray(wire.encode_header(make()))
    at %= len(data)
    data[at : at + len(noise)] = noise
    try:
        manifest = wire.decode_header(bytes(data), ID)
    except (ManifestError, UnsafePathError):
        return
    assert manifest.object_id == ID


def test_a_header_too_large_to_travel_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    data = wire.encode_header(make())
    monkeypatch.setattr(wire, "HEADER_BYTES_MAX", 50)
    with pytest.raises(SnapshotError, match="fewer tensors"):
        wire.encode_header(make())
    with pytest.raises(ManifestError, match="the limit is 50"):
        wire.decode_header(data, ID)


def test_pages_survive_the_wire() -> None:
    manifest = make(chunks_per_page=100)
    assert manifest.pages_total == 2
    digests = [bytes([i]) * 16 for i in range(manifest.chunks_total)]
    assert wire.decode_page(manifest, wire.encode_page(0, digests[:100])) == wire.PageContent(0, digests[:100])
    assert wire.decode_page(manifest, wire.encode_page(1, digests[100:])) == wire.PageContent(1, digests[100:])


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff",
        wire.encode_page(2, [bytes(16)]),
        wire.encode_page(0, [bytes(16)] * 99),
        wire.encode_page(0, [bytes(16)] * 101),
        pb.Page(index=0, digests=bytes(1600), lengths=[1]).SerializeToString(),
        bytes(wire.PAGE_BYTES_MAX + 1),
    ],
)
def test_a_page_that_does_not_fit_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        wire.decode_page(make(chunks_per_page=100), data)


def test_a_header_travels_in_parts_below_the_message_limit() -> None:
    data = bytes(range(256)) * 12_289  # 3 MiB and 256 bytes
    parts = wire.split_header(data)
    assert [len(part.data) for part in parts] == [1 << 20, 1 << 20, 1 << 20, 256]
    assert max(part.ByteSize() for part in parts) < GRPC_MESSAGE_BYTES_MAX
    assembler = wire.HeaderAssembler()
    assert [assembler.add(part) for part in parts] == [None, None, None, data]


@pytest.mark.parametrize(
    "parts",
    [
        [pb.HeaderPart(part=0, parts=0, data=b"x")],
        [pb.HeaderPart(part=0, parts=129, data=b"x")],
        [pb.HeaderPart(part=1, parts=2, data=b"x")],
        [pb.HeaderPart(part=0, parts=2, data=b"")],
        [pb.HeaderPart(part=0, parts=2, data=bytes((1 << 20) + 1))],
        [pb.HeaderPart(part=0, parts=3, data=b"x"), pb.HeaderPart(part=2, parts=3, data=b"x")],
        [pb.HeaderPart(part=0, parts=3, data=b"x"), pb.HeaderPart(part=0, parts=3, data=b"x")],
        [pb.HeaderPart(part=0, parts=3, data=b"x"), pb.HeaderPart(part=1, parts=4, data=b"x")],
    ],
)
def test_parts_that_do_not_follow_are_refused(parts: list[pb.HeaderPart]) -> None:
    assembler = wire.HeaderAssembler()
    for part in parts[:-1]:
        assert assembler.add(part) is None
    with pytest.raises(ManifestError):
        assembler.add(parts[-1])


def test_a_compressed_snapshot_is_one_file_that_begins_at_nothing() -> None:
    kind = ObjectKind.FULL_COMPRESSED
    compressed = make(files=(FileEntry(DELTA_FILE, 690),), tensors=(), kind=kind, target_bytes=1000)
    assert (compressed.payload_bytes, compressed.snapshot_bytes) == (690, 1000)
    assert wire.decode_header(wire.encode_header(compressed), ID) == compressed
    with pytest.raises(ManifestError, match="full-compressed object that begins at 'xxh3_128:00'"):
        replace(compressed, base_root="xxh3_128:00")
    with pytest.raises(ManifestError, match="a delta object that begins at ''"):
        replace(compressed, kind=ObjectKind.DELTA)
    with pytest.raises(ManifestError, match="how large"):
        replace(compressed, target_bytes=0)


def open_end(**changes: object) -> pb.Header:
    delta = Manifest(
        ID,
        XXH3_128,
        1 << 16,
        (FileEntry(DELTA_FILE, 10 << 16),),
        kind=ObjectKind.FULL_COMPRESSED,
        chunks_per_page=4,
        target_bytes=1 << 20,
        open_end=True,
    )
    message = pb.Header.FromString(wire.encode_header(delta))
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def test_a_header_with_an_open_end_survives_and_older_nodes_refuse_it() -> None:
    message = open_end()
    manifest = wire.decode_header(message.SerializeToString(), ID)
    assert (manifest.open_end, manifest.payload_bytes, manifest.chunks_total) == (True, 10 << 16, 10)
    assert message.format == 2  # a node that knows no open end speaks 1, and says so
    for hostile, why in (
        (open_end(format=1), "upgrade"),
        (open_end(open_end=False), "upgrade"),
        (open_end(format=3), "upgrade"),
    ):
        with pytest.raises(ManifestError, match=why):
            wire.decode_header(hostile.SerializeToString(), ID)
    full = header()
    full.format, full.open_end = 2, True
    with pytest.raises(ManifestError, match="an open end"):
        decode(full)


@given(st.integers(1, 10 << 16), st.integers(0, 3), st.integers(0, 5), st.integers(-1, 1 << 17))
def test_the_last_page_says_what_it_can(size: int, index: int, digests: int, off: int) -> None:
    """Exactly the pages that a publisher makes are taken: those whose digests end where the object does."""
    manifest = wire.decode_header(open_end().SerializeToString(), ID)
    end = max(1, size + off)
    chunks = -(-end // (1 << 16))
    right = end <= 10 << 16 and index == (chunks - 1) // 4 and digests == chunks - 4 * index
    data = wire.encode_page(index, [bytes(16)] * digests, end)
    if not right:
        with pytest.raises(ManifestError):
            wire.decode_page(manifest, data)
        return
    page = wire.decode_page(manifest, data)
    assert page.closed is not None
    assert (page.closed.payload_bytes, page.closed.chunks_total, page.closed.open_end) == (end, chunks, False)
    again = wire.decode_page(page.closed, data)  # from another parent
    assert (again.digests, again.closed) == (page.digests, None)
