"""Signatures in the form of Standard Webhooks, so that receivers can verify them with a library they have."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
SECRET_BYTES = (24, 64)


class Signer:
    """Signs with every secret, so that receivers can be given a new one before the old one goes.

    secrets: whsec_ and the base64 of 24 to 64 random bytes. Raises ValueError, which never quotes one.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [_key(secret, position) for position, secret in enumerate(secrets, 1)]
        if not self._keys:
            raise ValueError("there is no secret to sign with")

    def headers(self, message_id: str, body: bytes, now: float) -> dict[str, str]:
        """now: seconds since 1970; receivers refuse what is older than some minutes."""
        timestamp = str(int(now))
        content = f"{message_id}.{timestamp}.".encode() + body
        signatures = (base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in self._keys)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
        }


def _key(secret: str, position: int) -> bytes:
    shortest, longest = SECRET_BYTES
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not shortest <= len(key) <= longest:
        raise ValueError(f"secret {position} is not {PREFIX} and the base64 of {shortest} to {longest} bytes")
    return key
