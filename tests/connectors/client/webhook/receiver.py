"""A receiver of webhooks on a real loopback port, and a handler that may call it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from fencepost.leases import Lease, LeaseTerms, elapsed_s
from fencepost.models import LeasedRun
from fencepost.run_context import RunContext
from fencepost.webhook.checked_network import CheckedNetwork, Resolve, resolve
from fencepost.webhook.destinations import AllowedHost, AllowList, read_allowed_host, read_destination
from fencepost.webhook.signature import Signer
from fencepost.webhook.webhook import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CASES = Path(__file__).parents[3] / "data/cases.jsonl"
LOOPBACK = ip_network("127.0.0.0/8")
RUN_ID, JOB_ID = UUID(int=1), UUID(int=2)
NOW_S = 1_772_359_200.0


def case(case_id: str) -> dict[str, Any]:
    """A case of tests/data/cases.jsonl."""
    found: list[dict[str, Any]] = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return next(each for each in found if each["id"] == case_id)


class Call(NamedTuple):
    """A request that came. headers: by their names in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


Answering = Callable[[Call], Awaitable[bytes]]


class Receiver:
    """Keeps what came and answers what it is told to, byte by byte as given."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answering: Answering = fixed(answer(200))
        self.hung_up = asyncio.Event()  # a caller went away before it had its answer
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            call = await _read(reader)
            self.calls.append(call)
            answering = asyncio.ensure_future(self.answering(call))
            gone = asyncio.ensure_future(reader.read())
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                writer.write(answering.result())
                await writer.drain()
            else:
                self.hung_up.set()
            answering.cancel()
            gone.cancel()


async def _read(reader: asyncio.StreamReader) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *fields = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
    return Call(line, headers, await reader.readexactly(int(headers["content-length"])))


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """An answer as it goes over the wire; headers: their names with _ for -."""
    fields = {"content-length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} \r\n{head}\r\n".encode() + body


def json_answer(value: Any, status: int = 200) -> bytes:
    return answer(status, json.dumps(value).encode(), content_type="application/json; charset=utf-8")


def fixed(*answers: bytes) -> Answering:
    """These one after the other, the last for ever."""
    left = list(answers)

    async def next_answer(_: Call) -> bytes:
        return left.pop(0) if len(left) > 1 else left[0]

    return next_answer


async def never(_: Call) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


@contextlib.asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver that listens, until the end of the block."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def names(hosts: Mapping[str, list[str]]) -> Resolve:
    """A resolver that knows these; anything else is for the system's."""

    async def known(host: str, port: int) -> list[str]:
        return hosts[host] if host in hosts else await resolve(host, port)

    return known


def webhook(
    url: str | None,
    *allowed: str,
    private: bool = True,
    resolver: Resolve = resolve,
    secrets: tuple[str, ...] = (SECRET,),
    **options: Any,
) -> Webhook:
    """A handler that may use http; and 127.0.0.0/8, when `private`. allowed: hosts beside the URL's own."""
    destination = None if url is None else read_destination(url)
    own = [] if destination is None else [AllowedHost(destination.host, False, destination.port)]
    allow_list = AllowList([*own, *map(read_allowed_host, allowed)], http=True)
    network = CheckedNetwork([LOOPBACK] if private else [], resolver=resolver)
    return Webhook(destination, allow_list, Signer(secrets), network, **{"clock": lambda: NOW_S} | options)


def run(payload: Any = None, *, attempt: int = 1, lease_token: int = 1) -> RunContext:
    """What a worker hands to a handler."""
    instant = datetime(2026, 3, 1, 9, tzinfo=UTC)
    leased = LeasedRun(
        run_id=RUN_ID,
        job_id=JOB_ID,
        attempt=attempt,
        lease_token=lease_token,
        lease_expires_at=instant,
        lease_seconds=30,
        scheduled_for=instant,
        due_at=instant,
        queue="q",
        payload=payload,
    )
    return RunContext(Lease(leased, elapsed_s()), LeaseTerms(30), elapsed_s)
