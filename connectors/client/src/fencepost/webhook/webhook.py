"""The handler: one signed request for every run, and what its answer makes of the run."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import httpcore
import httpx
import msgspec

from fencepost.attempt_ends import RESULT_MAX_BYTES
from fencepost.errors import PermanentFailure, RetryLater
from fencepost.run_context import RunContext
from fencepost.webhook.answers import Answer, result_of
from fencepost.webhook.checked_network import CheckedNetwork
from fencepost.webhook.destinations import AllowList, Destination, DestinationRefused, read_destination
from fencepost.webhook.signature import Signer

log = logging.getLogger("fencepost.webhook")

RESPONSE_MAX_BYTES = RESULT_MAX_BYTES
REDIRECTS_MAX = 3
_FOLLOWED = (307, 308)  # after the others a client sends a GET, without the body


class AddressedPayload(msgspec.Struct, forbid_unknown_fields=True):
    """What a payload says that brings its own URL."""

    url: str
    body: Any = None


class Webhook:
    """A worker's handler that calls `destination`; when that is None, the URL that the payload names.

    timeout_s: for the whole call, redirects and name resolution included. connect_timeout_s: for each address.
    clock: seconds since 1970. tls: for tests; else the system's authorities, or those of SSL_CERT_FILE.
    Proxies of the environment are not used: they would connect to addresses that nobody here has checked.
    """

    def __init__(
        self,
        destination: Destination | None,
        allow_list: AllowList,
        signer: Signer,
        network: CheckedNetwork,
        *,
        timeout_s: float = 30,
        connect_timeout_s: float = 5,
        clock: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._destination = destination
        self._allow_list = allow_list
        self._signer = signer
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._clock = clock
        # The worker's slots bound the connections. None is kept, so there is nothing to close here: every hop of every
        # call is checked anew, and no call meets a connection that the receiver is just closing.
        self._connections = httpcore.AsyncConnectionPool(
            ssl_context=tls or httpx.create_ssl_context(),
            max_connections=None,
            max_keepalive_connections=0,
            network_backend=network,
        )

    async def __call__(self, ctx: RunContext) -> msgspec.Raw | None:
        """The run's result. Raises RetryLater or PermanentFailure with a reason that names status and answer."""
        try:
            return await self._call(ctx)
        except (PermanentFailure, RetryLater) as failure:
            log.warning("%r: %s", ctx, failure)
            raise

    async def _call(self, ctx: RunContext) -> msgspec.Raw | None:
        try:
            destination, content = self._addressed(ctx.payload)
            body = msgspec.json.encode(content)
            headers = _headers(ctx) | self._signer.headers(ctx.idempotency_key, body, self._clock())
            async with asyncio.timeout(self._timeout_s):
                answer = await self._deliver(destination, headers, body)
        except DestinationRefused as refusal:
            raise PermanentFailure(f"not called: {refusal}") from refusal
        except TimeoutError as error:
            raise RetryLater(None, f"timed out: no whole answer within {self._timeout_s:g} s") from error
        return result_of(answer, datetime.fromtimestamp(self._clock(), UTC))

    def _addressed(self, payload: Any) -> tuple[Destination, Any]:
        if self._destination is not None:
            return self._destination, payload
        try:
            addressed = msgspec.convert(payload, AddressedPayload)
        except msgspec.ValidationError as error:
            raise PermanentFailure(f'the payload is not {{"url": …, "body": …}}: {error}') from error
        return read_destination(addressed.url), addressed.body

    async def _deliver(self, destination: Destination, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer after at most 3 redirects. Each hop is checked as the first is."""
        for _ in range(1 + REDIRECTS_MAX):
            self._allow_list.check(destination)
            answer = await self._send(destination, headers, body)
            location = answer.headers.get("location")
            if answer.status not in _FOLLOWED or location is None:
                return answer
            destination = destination.redirected(location)
        raise PermanentFailure(f"more than {REDIRECTS_MAX} redirects, the last {answer}")

    async def _send(self, destination: Destination, headers: Mapping[str, str], body: bytes) -> Answer:
        scheme, host, port, target = destination
        try:
            async with self._connections.stream(
                "POST",
                httpcore.URL(scheme=scheme, host=host, port=port, target=target),
                headers=[("Host", destination.authority), *headers.items()],
                content=body,
                extensions={"timeout": {"connect": self._connect_timeout_s}},
            ) as response:
                return await _read(host, response)
        except httpcore.ConnectTimeout as error:
            raise RetryLater(None, f"timed out: {host} took no connection in {self._connect_timeout_s:g} s") from error
        except httpcore.ConnectError as error:
            raise RetryLater(None, f"{host} cannot be reached: {error}") from error
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise RetryLater(None, f"{host} broke off: {error or type(error).__name__}") from error


async def _read(host: str, response: httpcore.Response) -> Answer:
    """Status, headers and the beginning of the body, as it came: nothing is unpacked."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > RESPONSE_MAX_BYTES:
            return Answer(host, response.status, headers, bytes(body[:RESPONSE_MAX_BYTES]), whole=False)
    return Answer(host, response.status, headers, bytes(body), whole=True)


def _headers(ctx: RunContext) -> dict[str, str]:
    return {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Content-Type": "application/json",
        "User-Agent": "fencepost-webhook",
        "Idempotency-Key": ctx.idempotency_key,
        "Fencepost-Run-Id": str(ctx.run_id),
        "Fencepost-Job-Id": str(ctx.job_id),
        "Fencepost-Attempt": str(ctx.attempt),
        "Fencepost-Lease-Token": str(ctx.lease_token),
        "Fencepost-Scheduled-For": ctx.scheduled_for.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
