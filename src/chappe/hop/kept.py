"""An object's header and pages as the store keeps them: what was verified to come, before any of it came.

header   one checksummed record, replaced as a whole
pages    see chappe.hop.journal; in memory only their digests, 16 bytes a chunk
"""

from __future__ import annotations

from chappe.core.manifest import Manifest
from chappe.errors import ManifestError
from chappe.hop.disk import Disk
from chappe.hop.journal import PageLog, frame, unframe
from chappe.hop.layout import ObjectLayout
from chappe.wire.manifest import PageContent, decode_header, decode_page


class KeptManifest:
    """Of one object. `manifest` is None until a header is here; its end is open until the last page has said where."""

    def __init__(self, disk: Disk, own: ObjectLayout, object_id: str) -> None:
        self.manifest: Manifest | None = None
        self.header: bytes | None = None
        self._disk = disk
        self._own = own
        self._object_id = object_id
        self._digests: list[bytes] = []  # per page, joined
        self._pages = PageLog(disk, own.pages)

    def load(self) -> Manifest:
        """Pages end at the first bad one. Raises OSError, ManifestError or UnsafePathError for a bad header."""
        header = unframe(self._own.header.read_bytes())
        if header is None:
            raise ManifestError(f"{self._own.header} is damaged")
        self.manifest, self.header = decode_header(header, self._object_id), header
        for data in self._pages.load():
            try:
                page = decode_page(self.manifest, data)
            except ManifestError:
                break
            if page.index != len(self._digests):
                break
            self._take(page)
        self._pages.cut(len(self._digests))
        return self.manifest

    def _take(self, page: PageContent) -> None:
        self._digests.append(b"".join(page.digests))
        if page.closed is not None:
            self.manifest = page.closed

    def parse(self, data: bytes) -> Manifest:
        """The manifest of a header from a peer. Raises ManifestError or UnsafePathError."""
        return decode_header(data, self._object_id)

    def keep(self, manifest: Manifest, data: bytes) -> None:
        """Raises OSError; nothing is kept then."""
        self._disk.write_record(self._own.header, frame(data), durable=False)
        self.manifest, self.header = manifest, data

    def add_page(self, data: bytes) -> bool:
        """False for one that is here already. Raises ManifestError, OSError."""
        page = decode_page(self.known(), data)
        if page.index < len(self._digests):
            if page.closed is not None or b"".join(page.digests) != self._digests[page.index]:
                raise ManifestError(f"a second page {page.index} of object {self._object_id} differs from the first")
            return False
        if page.index > len(self._digests):
            raise ManifestError(f"page {page.index} came before page {len(self._digests)}")
        self._pages.append(data)
        self._take(page)
        return True

    @property
    def pages_held(self) -> int:
        return len(self._digests)

    @property
    def chunks_known(self) -> int:
        """Chunks [0, chunks_known) have a digest."""
        return self.known().chunks_of_page(len(self._digests) - 1)[1] if self._digests else 0

    def page_bytes(self, index: int) -> bytes:
        return self._pages.get(index)

    def digest(self, chunk: int) -> bytes | None:
        """What a chunk must hash to; None while its page is not here. Raises ManifestError outside the object."""
        manifest = self.known()
        if not 0 <= chunk < manifest.chunks_total:
            raise ManifestError(f"chunk {chunk} of an object of {manifest.chunks_total}")
        page, at = divmod(chunk, manifest.chunks_per_page)
        if page >= len(self._digests):
            return None
        size = manifest.algorithm.digest_bytes
        return self._digests[page][at * size : (at + 1) * size]

    def known(self) -> Manifest:
        """The manifest. Raises ManifestError while there is none."""
        if self.manifest is None:
            raise ManifestError(f"object {self._object_id} has no header yet")
        return self.manifest

    def close(self) -> None:
        self._pages.close()
