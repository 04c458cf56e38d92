from __future__ import annotations

import pytest

from chappe.errors import BadTokenError
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken
from chappe.wire.token import TokenKey, verify

KEY = TokenKey.generate()
CLAIMS = EdgeClaims(run="r", object_id="o", stripe=1, slot=2, parent="p", child="c", child_generation=3, epoch=4)


def test_what_was_signed_comes_back() -> None:
    assert verify(KEY.public_bytes(), KEY.sign(CLAIMS)) == CLAIMS


def test_the_key_survives_its_bytes() -> None:
    again = TokenKey.from_bytes(KEY.to_bytes())
    assert len(KEY.public_bytes()) == 32
    assert again.public_bytes() == KEY.public_bytes()
    assert verify(KEY.public_bytes(), again.sign(CLAIMS)) == CLAIMS


def test_a_changed_claim_is_noticed() -> None:
    token = KEY.sign(CLAIMS)
    claims = EdgeClaims.FromString(token.claims)
    claims.epoch += 1
    with pytest.raises(BadTokenError, match="not signed"):
        verify(KEY.public_bytes(), EdgeToken(claims=claims.SerializeToString(), signature=token.signature))


@pytest.mark.parametrize(
    "token", [EdgeToken(), EdgeToken(claims=b"x", signature=b"y"), TokenKey.generate().sign(CLAIMS)]
)
def test_nobody_else_can_sign(token: EdgeToken) -> None:
    with pytest.raises(BadTokenError):
        verify(KEY.public_bytes(), token)


def test_an_endless_token_is_not_even_checked() -> None:
    with pytest.raises(BadTokenError, match="5000 bytes"):
        verify(KEY.public_bytes(), EdgeToken(claims=bytes(5000)))


def test_a_signature_for_another_purpose_is_no_token() -> None:
    data = CLAIMS.SerializeToString()
    bare = KEY._private.sign(data)
    with pytest.raises(BadTokenError):
        verify(KEY.public_bytes(), EdgeToken(claims=data, signature=bare))
