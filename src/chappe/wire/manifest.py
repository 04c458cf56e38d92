"""Manifest <-> messages: the header of an object, its pages, and the pieces in which a header travels.

Everything decoded here comes from a peer: sizes are bounded before anything is parsed, every path goes through
`chappe.payload.paths`, and what cannot be true is a ManifestError (or an UnsafePathError). A relay forwards the bytes
that it received, so that a header is the same on every hop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from chappe.core.digest import ALGORITHMS
from chappe.core.manifest import FileEntry, Manifest, ObjectKind, TensorEntry, check_page
from chappe.errors import ManifestError, SafetensorsError, SnapshotError
from chappe.payload.paths import check_tree
from chappe.payload.safetensors import data_bytes
from chappe.v1 import relay_pb2 as pb

FORMAT, FORMAT_OPEN_END = 1, 2  # a node that knows no open end takes what it has at most for what it has
PART_BYTES = 1 << 20
HEADER_BYTES_MAX = 128 << 20
"""About a million tensors. A publisher refuses to make a larger one, a receiver to collect it."""
PAGE_BYTES_MAX = 1 << 18
"""4096 digests of 32 bytes are half of it."""

_KINDS = {
    pb.OBJECT_KIND_FULL: ObjectKind.FULL,
    pb.OBJECT_KIND_FULL_COMPRESSED: ObjectKind.FULL_COMPRESSED,
    pb.OBJECT_KIND_DELTA: ObjectKind.DELTA,
}
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def encode_header(manifest: Manifest) -> bytes:
    """The serialized Header of an object. Raises SnapshotError when it would be too large to travel."""
    header = pb.Header(
        format=FORMAT_OPEN_END if manifest.open_end else FORMAT,
        object_id=manifest.object_id,
        kind=_KIND_NUMBERS[manifest.kind],
        digest_algorithm=manifest.algorithm.name,
        payload_bytes=manifest.payload_bytes,
        snapshot_bytes=manifest.snapshot_bytes,
        base_root=manifest.base_root,
        open_end=manifest.open_end,
        chunk_bytes=manifest.chunk_bytes,
        chunks_per_page=manifest.chunks_per_page,
        files=[pb.FileEntry(path=f.path, size_bytes=f.size_bytes) for f in manifest.files],
        tensors=[
            pb.TensorEntry(name=t.name, dtype=t.dtype, shape=t.shape, file=t.file, begin=t.begin, end=t.end)
            for t in manifest.tensors
        ],
    )
    data = header.SerializeToString(deterministic=True)
    if len(data) > HEADER_BYTES_MAX:
        raise SnapshotError(
            f"the table of {len(manifest.files)} files and {len(manifest.tensors)} tensors takes {len(data)} bytes; "
            f"the limit is {HEADER_BYTES_MAX}: publish fewer tensors at a time"
        )
    return data


def object_id_of(data: bytes) -> str:
    """The object that a serialized Header says it is of; not checked. Raises ManifestError."""
    header = pb.Header()
    try:
        header.ParseFromString(data)
    except DecodeError as error:
        raise ManifestError(f"the header is not a Header message: {error}") from None
    return header.object_id


def decode_header(data: bytes, object_id: str) -> Manifest:
    """Parse and check a peer's Header for the object that was asked for. Raises ManifestError, UnsafePathError."""
    if len(data) > HEADER_BYTES_MAX:
        raise ManifestError(f"a header of {len(data)} bytes; the limit is {HEADER_BYTES_MAX}")
    header = pb.Header()
    try:
        header.ParseFromString(data)
    except DecodeError as error:
        raise ManifestError(f"the header is not a Header message: {error}") from None
    if header.format != (FORMAT_OPEN_END if header.open_end else FORMAT):
        raise ManifestError(
            f"the header has format {header.format}; this node speaks {FORMAT} and {FORMAT_OPEN_END}: "
            "upgrade the older one"
        )
    if header.object_id != object_id:
        raise ManifestError(f"the header of {header.object_id[:80]!r} where that of {object_id!r} was asked for")
    kind = _KINDS.get(header.kind)
    if kind is None:
        raise ManifestError(f"object {object_id} is of kind unknown ({header.kind}): upgrade this node")
    algorithm = ALGORITHMS.get(header.digest_algorithm)
    if algorithm is None:
        raise ManifestError(f"digest algorithm {header.digest_algorithm[:80]!r} is not known here: upgrade this node")
    check_tree(f.path for f in header.files)
    manifest = Manifest(
        object_id=object_id,
        algorithm=algorithm,
        chunk_bytes=header.chunk_bytes,
        files=tuple(FileEntry(f.path, f.size_bytes) for f in header.files),
        tensors=tuple(_decode_tensors(header.tensors)),
        chunks_per_page=header.chunks_per_page,
        kind=kind,
        base_root=header.base_root,
        target_bytes=0 if kind is ObjectKind.FULL else header.snapshot_bytes,
        open_end=header.open_end,
    )
    if (header.payload_bytes, header.snapshot_bytes) != (manifest.payload_bytes, manifest.snapshot_bytes):
        raise ManifestError(
            f"the header says {header.payload_bytes} bytes of payload and {header.snapshot_bytes} of snapshot, "
            f"its files have {manifest.payload_bytes}"
        )
    return manifest


def _decode_tensors(tensors: Iterable[pb.TensorEntry]) -> Iterable[TensorEntry]:
    last = (0, 0)
    for t in tensors:
        shape = tuple(t.shape)
        try:
            size = data_bytes(t.dtype, shape)
        except SafetensorsError as error:
            raise ManifestError(f"tensor {t.name[:120]!r}: {error}") from None
        if t.end - t.begin != size:
            raise ManifestError(f"tensor {t.name[:120]!r}: {t.end - t.begin} bytes for {size} bytes of {t.dtype}")
        if (t.file, t.begin) < last:
            raise ManifestError(f"tensor {t.name[:120]!r} overlaps the one before it, or is out of order")
        last = (t.file, t.end)
        yield TensorEntry(t.name, t.dtype, shape, t.file, t.begin, t.end)


@dataclass(frozen=True, slots=True)
class PageContent:
    """A page's number, and one digest per chunk. `closed`: it is the last of an object whose end was open, and this is
    the manifest from now on."""

    index: int
    digests: list[bytes]
    closed: Manifest | None = None


def encode_page(index: int, digests: Sequence[bytes], end_bytes: int = 0) -> bytes:
    """The serialized Page: one digest per chunk, in order; with `end_bytes` the last of an object with an open end."""
    return pb.Page(index=index, digests=b"".join(digests), end_bytes=end_bytes).SerializeToString()


def decode_page(manifest: Manifest, data: bytes) -> PageContent:
    """Raises ManifestError for a page that cannot be one of this object."""
    if len(data) > PAGE_BYTES_MAX:
        raise ManifestError(f"a page of {len(data)} bytes; the limit is {PAGE_BYTES_MAX}")
    page = pb.Page()
    try:
        page.ParseFromString(data)
    except DecodeError as error:
        raise ManifestError(f"the page is not a Page message: {error}") from None
    if page.lengths:
        raise ManifestError(f"page {page.index} gives chunk lengths, which follow from the header")
    closed = None
    if page.end_bytes and manifest.open_end:
        count = len(page.digests) // manifest.algorithm.digest_bytes
        manifest = closed = manifest.closed(page.index, count, page.end_bytes)
    elif page.end_bytes and (page.index != manifest.pages_total - 1 or page.end_bytes != manifest.payload_bytes):
        raise ManifestError(f"page {page.index} ends an object at {page.end_bytes} bytes, which it does not")
    return PageContent(page.index, check_page(manifest, page.index, page.digests), closed)


def split_header(data: bytes) -> list[pb.HeaderPart]:
    """A serialized Header as messages far below gRPC's 4 MiB limit."""
    pieces = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    return [pb.HeaderPart(part=i, parts=len(pieces), data=piece) for i, piece in enumerate(pieces)]


class HeaderAssembler:
    """Collects the parts of one header, in order. Memory is bounded by HEADER_BYTES_MAX and by what has come."""

    __slots__ = ("_parts", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._parts = 0

    def add(self, part: pb.HeaderPart) -> bytes | None:
        """Return the whole header with its last part, None before. Raises ManifestError."""
        if not self._pieces:
            if not 1 <= part.parts <= HEADER_BYTES_MAX // PART_BYTES:
                raise ManifestError(f"a header in {part.parts} parts")
            self._parts = part.parts
        if part.parts != self._parts or part.part != len(self._pieces):
            raise ManifestError(
                f"part {part.part} of {part.parts} of a header, after {len(self._pieces)} of {self._parts}"
            )
        if not 1 <= len(part.data) <= PART_BYTES:
            raise ManifestError(f"part {part.part} of a header has {len(part.data)} bytes")
        self._pieces.append(part.data)
        if len(self._pieces) < self._parts:
            return None
        data = b"".join(self._pieces)
        self._pieces, self._parts = [], 0
        return data
