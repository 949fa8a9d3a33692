"""Payloads and results that the server cannot read: encrypted before they leave, opened where a handler runs."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from msgspec import Struct

from fencepost.errors import InvalidInput, PermanentFailure
from fencepost.job_spec import JobSpec, payload_text


class PayloadCodec(Protocol):
    """Whose key only producers and workers have. `cryptography.fernet.Fernet` is one, as it stands."""

    def encrypt(self, data: bytes, /) -> bytes:
        """The ciphertext, in ASCII."""

    def decrypt(self, token: bytes, /) -> bytes:
        """What was encrypted. Raises any exception for what was not, or was with another key."""


class Sealed(Struct, frozen=True, forbid_unknown_fields=True):
    """What the server keeps in place of a value: {"encrypted": "…"}."""

    encrypted: str


def sealed(payload: Any, codec: PayloadCodec | None) -> Any:
    """A payload as it leaves; None, which says that there is none, stays. Raises InvalidInput as payload_text does."""
    if codec is None or payload is None:
        return payload
    return seal(payload_text(payload).encode(), codec)


def sealed_spec(spec: JobSpec, codec: PayloadCodec | None) -> JobSpec:
    """A definition as it leaves. Raises InvalidInput."""
    return msgspec.structs.replace(spec, payload=sealed(spec.payload, codec))


def seal(text: bytes, codec: PayloadCodec) -> Sealed:
    """JSON as its envelope. Raises InvalidInput when the ciphertext is no ASCII."""
    try:
        return Sealed(codec.encrypt(text).decode("ascii"))
    except UnicodeDecodeError as error:
        raise InvalidInput("the codec's ciphertext is not ASCII: encode it, in base64 for instance") from error


def opened(value: Any, codec: PayloadCodec | None) -> Any:
    """The value in an envelope; None stays. Raises PermanentFailure for what nobody with this key has sealed.

    So a handler with a codec never takes what somebody wrote who has a token but not the key.
    """
    if codec is None or value is None:
        return value
    try:
        envelope = msgspec.convert(value, Sealed)
    except msgspec.ValidationError as error:
        raise PermanentFailure("it is not encrypted, and this worker takes nothing that is not") from error
    try:
        return msgspec.json.decode(codec.decrypt(envelope.encrypted.encode()))
    except Exception as error:  # of whatever kind the codec's library has
        raise PermanentFailure(f"it cannot be decrypted with this worker's key: {type(error).__name__}") from error
