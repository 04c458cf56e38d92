from __future__ import annotations

import pytest

from chappe.core.effects import PublishErrorKind
from chappe.wire.failures import decode_kind, encode_kind


@pytest.mark.parametrize("kind", [*PublishErrorKind, ""])
def test_a_kind_survives_the_way(kind: str) -> None:
    assert decode_kind(encode_kind(kind)) == kind


def test_other_metadata_is_no_kind() -> None:
    assert decode_kind(None) == decode_kind(()) == decode_kind([("grpc-status", "9")]) == ""


def test_what_is_not_text_is_no_reason_to_fail() -> None:
    ((key, _),) = encode_kind("x")
    assert decode_kind([("other", "1"), (key, b"supers\xffeded")]) == "supers\ufffdeded"
