from __future__ import annotations

from fakes import OBJECT_ID, MemoryObject

from chappe.hop.catalog import Catalog


def test_add_get_remove() -> None:
    catalog, first, second = Catalog(), MemoryObject(), MemoryObject()
    assert catalog.get(OBJECT_ID) is None
    catalog.add(first)
    assert OBJECT_ID in catalog
    assert catalog.get(OBJECT_ID) is first
    catalog.add(second)
    assert list(catalog) == [second]
    assert len(catalog) == 1
    assert catalog.remove(OBJECT_ID) is second
    assert catalog.remove(OBJECT_ID) is None
    assert len(catalog) == 0
