"""What every part of the HTTP client is built on: one connection, reads and commands."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from fencepost.errors import InvalidInput
from fencepost.http_calls import HttpCalls, decoded
from fencepost.ids import new_id
from fencepost.sealing import PayloadCodec

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,198}[\x21-\x7e])?")
ANSWER_ALLOWANCE_S = 10.0  # for the way there and back, beyond what a long-poll waits


class BaseClient:
    """A server and a token. payload_codec: encrypts the payloads of jobs, see `fencepost.sealing`."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float = ANSWER_ALLOWANCE_S,
        retry_for_s: float = 15.0,
        transport: httpx.AsyncBaseTransport | None = None,
        payload_codec: PayloadCodec | None = None,
    ) -> None:
        self._payload_codec = payload_codec
        self._calls = HttpCalls(base_url, token, timeout_s=timeout_s, retry_for_s=retry_for_s, transport=transport)

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def _get(self, path: str, kind: type[T]) -> T:
        return decoded((await self._calls.call("GET", path)).body, kind)

    async def _post(self, path: str, kind: type[T], body: Any = None) -> T:
        return decoded((await self._calls.call("POST", path, body)).body, kind)

    async def _command(self, method: str, path: str, body: Any, idempotency_key: str | None, kind: type[S]) -> S:
        """A command's answer, a struct with `applied`."""
        key = str(new_id()) if idempotency_key is None else _checked_key(idempotency_key)
        answer = await self._calls.call(method, path, body, headers={"Idempotency-Key": key})
        result = decoded(answer.body, kind)
        return msgspec.structs.replace(result, applied=answer.status != 202)


def _checked_key(key: str) -> str:
    """Plain ASCII, so that it is the same text on both sides of the wire."""
    if not _KEY.fullmatch(key):
        raise InvalidInput("1 to 200 ASCII characters, none of them a control character", field="Idempotency-Key")
    return key
