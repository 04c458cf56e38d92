"""Edge tokens: what the coordinator lets a child ask of a parent, signed so that it can be checked while it is away.

    coordinator: TokenKey.sign(claims) ──▶ child's assignment ──▶ FetchRequest.token ──▶ parent: verify(public, token)

Says only whether the coordinator wrote it. Whether it is for this node, and still new enough, is `chappe.hop.guard`.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError

from chappe.errors import BadTokenError
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken

_DOMAIN = b"chappe edge token 1\0"  # a signature of this key means this and nothing else
_CLAIMS_BYTES_MAX = 4096


class TokenKey:
    """The coordinator's Ed25519 key."""

    __slots__ = ("_private",)

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> TokenKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, raw: bytes) -> TokenKey:
        """The 32 bytes that `to_bytes` gave. Raises ValueError for another length."""
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    def to_bytes(self) -> bytes:
        """The private key, to be persisted by the coordinator and by nobody else."""
        return self._private.private_bytes_raw()

    def public_bytes(self) -> bytes:
        """The public key, as `Welcome.token_key` carries it."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, claims: EdgeClaims) -> EdgeToken:
        data = claims.SerializeToString(deterministic=True)
        return EdgeToken(claims=data, signature=self._private.sign(_DOMAIN + data))


def verify(public: bytes, token: EdgeToken) -> EdgeClaims:
    """The claims of a token that the coordinator signed. Raises BadTokenError."""
    if len(token.claims) > _CLAIMS_BYTES_MAX:
        raise BadTokenError(f"an edge token of {len(token.claims)} bytes")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(token.signature, _DOMAIN + token.claims)
    except InvalidSignature as error:
        raise BadTokenError("the edge token is not signed by this fleet's coordinator") from error
    try:
        return EdgeClaims.FromString(token.claims)
    except DecodeError as error:
        raise BadTokenError("the edge token's claims cannot be read") from error
