"""How a refused Publish, Cancel, Drain or Forget says why: gRPC's codes do not tell a superseded publication from a
failed one, so the kind of the failure (a value of `core.effects.PublishErrorKind`) travels as trailing metadata."""

from __future__ import annotations

from collections.abc import Iterable

_KEY = "chappe-error-kind"
Metadata = tuple[tuple[str, str], ...]


def encode_kind(kind: str) -> Metadata:
    """Trailing metadata; none for a failure without a kind."""
    return ((_KEY, kind),) if kind else ()


def decode_kind(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The kind in trailing metadata, empty when it has none."""
    for key, value in metadata or ():
        if key == _KEY:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""
