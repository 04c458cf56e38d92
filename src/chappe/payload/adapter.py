"""What binds an adapter to the snapshot that it was trained on: one small file of its own snapshot.

The file is covered by the adapter's root, and travels, lands and is kept with it: whoever has the adapter knows what it
is for. Bytes in, values out.
"""

from __future__ import annotations

import json
import re

from chappe.errors import SafetensorsError, SnapshotError
from chappe.payload.safetensors import parse_json_object

BINDING_FILE = "chappe-adapter.json"
BINDING_BYTES_MAX = 4096
_ROOT = re.compile(r"[a-z0-9_]{1,32}:[0-9a-f]{16,128}")


def is_root(text: str) -> bool:
    return _ROOT.fullmatch(text) is not None


def pack_binding(base_root: str) -> bytes:
    return json.dumps({"base_root": base_root}).encode() + b"\n"


def parse_binding(data: bytes) -> str:
    """The root of the base. Raises SnapshotError for what no publisher writes."""
    try:
        root = parse_json_object(data[: BINDING_BYTES_MAX + 1], "the binding").get("base_root")
    except SafetensorsError as error:
        raise SnapshotError(f"{BINDING_FILE}: {error}") from None
    if len(data) > BINDING_BYTES_MAX or not isinstance(root, str) or not is_root(root):
        raise SnapshotError(f"{BINDING_FILE} does not say which snapshot the adapter is for")
    return root
