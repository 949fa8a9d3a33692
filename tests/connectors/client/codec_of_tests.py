"""A codec that commands find by its name: encryption is not its business, telling sealed from not is."""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode


class Sealing:
    """Another ciphertext each time, as Fernet's is."""

    def encrypt(self, data: bytes, /) -> bytes:
        return b64encode(secrets.token_bytes(8) + data[::-1])

    def decrypt(self, token: bytes, /) -> bytes:
        return b64decode(token, validate=True)[8:][::-1]


codec = Sealing()
