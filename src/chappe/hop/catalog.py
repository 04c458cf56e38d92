"""The objects that this node serves. A Fetch for anything else is answered "unknown here".

Whoever removes an object sets its state to DROPPED and fires its signal first, so that its children are told.
"""

from __future__ import annotations

from collections.abc import Iterator

from chappe.hop.source import ChunkSource


class Catalog:
    """`object_id` -> source. Used on the event loop's thread only."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        self._sources: dict[str, ChunkSource] = {}

    def add(self, source: ChunkSource) -> None:
        """Serve this object from now on. Another source with the same id is replaced."""
        self._sources[source.object_id] = source

    def remove(self, object_id: str) -> ChunkSource | None:
        """Answer new children with "unknown". Running streams keep their source."""
        return self._sources.pop(object_id, None)

    def get(self, object_id: str) -> ChunkSource | None:
        return self._sources.get(object_id)

    def __iter__(self) -> Iterator[ChunkSource]:
        return iter(list(self._sources.values()))

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, object_id: str) -> bool:
        return object_id in self._sources
