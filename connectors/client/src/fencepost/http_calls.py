"""One HTTP call to the API: encoding, errors by remedy, repetition of what is safe to repeat."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from fencepost.backoff import wait_before_retry_s
from fencepost.errors import InvalidInput, Problem, ServerFault, TryAgain, Unreachable, error_of

T = TypeVar("T")

# The request cannot have left: no connection, or none free. Every other transport error may have lost an answer.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_MAX_CONNECTIONS = 100
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can carry


class Answer(NamedTuple):
    """A successful answer. body is JSON."""

    status: int
    body: bytes


class HttpCalls:
    """Calls of one server with one token, over kept-alive connections.

    retry_for_s: how long a call goes on being repeated after TryAgain. transport: httpx's, for tests.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float,
        retry_for_s: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._base_url = _checked(base_url)
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._http = httpx.AsyncClient(
            base_url=self._base_url,
            headers={"Authorization": f"Bearer {_checked_token(token)}", "Content-Type": "application/json"},
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, keepalive_expiry=30),
            transport=transport,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        retry_for_s: float | None = None,
    ) -> Answer:
        """The answer, from the first try or a repetition.

        Every call of the contract is safe to repeat: reads, commands under an idempotency key, leases under a request
        id, outcomes under a lease token. timeout_s: of one try. Raises FencepostError.
        """
        content = None if body is None else _encoded(body)
        give_up_at = time.monotonic() + (self._retry_for_s if retry_for_s is None else retry_for_s)
        repetition = 0
        while True:
            try:
                return await self._try(method, path, content, headers, timeout_s or self._timeout_s)
            except TryAgain as error:
                wait_s = wait_before_retry_s(repetition, error.retry_after_s)
                if time.monotonic() + wait_s >= give_up_at:
                    raise
            await asyncio.sleep(wait_s)
            repetition += 1

    async def _try(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Answer:
        try:
            response = await self._http.request(method, path, content=content, headers=headers, timeout=timeout_s)
        except _UNSENT as error:
            raise Unreachable(f"{self._base_url} cannot be reached: {_said(error)}", sent=False) from error
        except httpx.TransportError as error:
            raise Unreachable(f"no answer from {self._base_url}: {_said(error)}") from error
        except httpx.HTTPError as error:
            raise ServerFault(f"{self._base_url} answered no HTTP of ours: {_said(error)}") from error
        if response.is_success:
            return Answer(response.status_code, response.content)
        raise error_of(_problem(response))


def decoded(body: bytes, kind: type[T]) -> T:
    """An answer's body as a `kind`. Raises ServerFault."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ServerFault(f"the answer is no {kind.__name__}: {error}") from error


def _encoded(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"no JSON: {error}") from error


def _problem(response: httpx.Response) -> Problem:
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.MsgspecError, UnicodeError):  # a proxy's page, for instance
        problem = Problem(detail=response.text[:500])
    retry_after_s = problem.retry_after_seconds
    if retry_after_s is None:
        retry_after_s = _seconds(response.headers.get("Retry-After"))
    title = problem.title or response.reason_phrase
    return msgspec.structs.replace(problem, status=response.status_code, title=title, retry_after_seconds=retry_after_s)


def _seconds(header: str | None) -> float | None:
    return float(header) if header and header.isascii() and header.isdigit() else None


def _said(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _checked_token(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise InvalidInput("it is no token: fp_… without spaces", field="token")
    return token


def _checked(base_url: str) -> str:
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError) as error:
        raise InvalidInput(f"{base_url!r} is no URL: {error}", field="base_url") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInput(f"{base_url!r} is no http(s) URL, such as http://127.0.0.1:8400", field="base_url")
    return base_url.rstrip("/")
