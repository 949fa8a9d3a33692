"""The public cases (tests/cases.py) about webhooks, a test each, by its name: against a receiver on a loopback port."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from itertools import count

import pytest

from fencepost import PermanentFailure, RetryLater
from fencepost.webhook.answers import RETRY_AFTER_MAX_S, retry_after_s
from fencepost.webhook.checked_network import CheckedNetwork
from fencepost.webhook.destinations import AllowedHost, AllowList, read_destination
from fencepost.webhook.signature import Signer
from fencepost.webhook.webhook import Webhook
from tests.cases import given
from tests.connectors.client.webhook.receiver import (
    SECRET,
    Call,
    Receiver,
    answer,
    fixed,
    names,
    never,
    run,
    webhook,
)
from tests.connectors.client.worker_bench import Bench

HOST = "hooks.example.com"


async def test_web_003(receiver: Receiver) -> None:
    """Whoever may name the host has all of these on the allow-list; each is refused as a text or by its addresses."""
    for spelled in given("web-003")[0]["host"]:
        host = spelled.encode().decode("unicode_escape")
        everything = AllowList([AllowedHost(host, False, receiver.port)], http=True)
        handler = Webhook(None, everything, Signer([SECRET]), CheckedNetwork())
        with pytest.raises(PermanentFailure, match=r"^not called: "):
            await handler(run({"url": f"http://{host}:{receiver.port}/"}))
    assert receiver.calls == []


async def test_web_004(receiver: Receiver) -> None:
    _, location = given("web-004")[0]["response"].split(" Location: ")
    receiver.answering = fixed(answer(302, location=location))
    with pytest.raises(PermanentFailure, match=r"^HTTP 302 from"):
        await webhook(receiver.url, "169.254.169.254")(run())
    assert len(receiver.calls) == 1


async def test_web_005(receiver: Receiver) -> None:
    """What a name says first is what is checked and connected to; what it would say the second time nobody asks."""
    lookups = count(1)

    async def rebinding(_: str, __: int) -> list[str]:
        return ["127.0.0.1"] if next(lookups) == 1 else ["127.0.0.2"]

    await webhook(f"http://{HOST}:{receiver.port}/", resolver=rebinding)(run())
    assert len(receiver.calls) == 1
    assert next(lookups) == 1 + given("web-005")[1]["lookups_per_attempt"]


@pytest.mark.parametrize("addresses", [["8.8.8.8", "10.0.0.5"], ["10.0.0.5", "8.8.8.8"]])
async def test_web_006(receiver: Receiver, addresses: list[str]) -> None:
    handler = webhook(f"http://{HOST}:{receiver.port}/", private=False, resolver=names({HOST: addresses}))
    with pytest.raises(PermanentFailure, match=r"resolves to 10\.0\.0\.5, which is not public"):
        await handler(run())


async def test_web_007(receiver: Receiver) -> None:
    both = {HOST: ["8.8.8.8", given("web-007")[0]["dns"]["AAAA"]]}
    with pytest.raises(PermanentFailure, match="resolves to ::1, which is not public"):
        await webhook(f"http://{HOST}:{receiver.port}/", private=False, resolver=names(both))(run())


async def test_web_008(receiver: Receiver) -> None:
    """It was public when somebody allowed it, and when it was called before: each call looks anew."""
    host, _ = given("web-008")[0]["host"].split(" ", 1)
    said = {host: ["127.0.0.1"]}
    handler = webhook(f"http://{host}:{receiver.port}/", resolver=names(said))
    await handler(run())
    said[host] = ["10.0.0.1"]
    with pytest.raises(PermanentFailure, match="resolves to"):
        await handler(run())
    assert len(receiver.calls) == 1


async def test_web_012() -> None:
    """A byte comes more often than any wait for one would last; the whole call has its own end."""
    hung_up = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = asyncio.ensure_future(reader.read())
        writer.write(b"HTTP/1.1 200 \r\ncontent-length: 1000000\r\n\r\n")
        while not gone.done():
            writer.write(b" ")
            await asyncio.wait([gone], timeout=0.02)
        gone.exception()
        writer.close()
        hung_up.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        with pytest.raises(RetryLater, match=r"timed out: no whole answer within 0\.3 s"):
            await webhook(f"http://127.0.0.1:{port}/", timeout_s=0.3)(run())
        assert time.monotonic() - began >= 0.3
        async with asyncio.timeout(30):
            await hung_up.wait()


async def test_web_014() -> None:
    """Where it gives no wait, the delay is the server's, by the job's retries."""
    forms = given("web-014")[0]["Retry-After"]
    now = datetime(2024, 5, 1, 10, tzinfo=UTC)
    waits = [retry_after_s(form, now) for form in forms]
    assert waits == [120, timedelta(minutes=5).total_seconds(), None, None, RETRY_AFTER_MAX_S, None]


async def test_web_015(receiver: Receiver, bench: Bench) -> None:
    """The receiver may have acted: it gets the same key again, and the history says that nobody knows."""
    calls = count(1)

    async def silent_at_first(call: Call) -> bytes:
        return await never(call) if next(calls) == 1 else answer(204)

    receiver.answering = silent_at_first
    [run_id] = bench.server.add({"to": "ops"})
    async with bench.working(webhook(receiver.url, timeout_s=0.3)):
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    first, second = (call.headers for call in receiver.calls)
    assert first["idempotency-key"] == second["idempotency-key"] == str(run_id)
    assert (first["fencepost-attempt"], second["fencepost-attempt"]) == ("1", "2")
    assert bench.server.runs[run_id].errors == ["timed out: no whole answer within 0.3 s"]


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "fd00:ec2::254"])
async def test_web_016(receiver: Receiver, address: str) -> None:
    """The host is allowed by its name, and every network that there is."""
    destination = read_destination(f"http://{HOST}:{receiver.port}/")
    allow_list = AllowList([AllowedHost(HOST, False, receiver.port)], http=True)
    private = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    network = CheckedNetwork(private, resolver=names({HOST: ["127.0.0.1", address]}))
    with pytest.raises(PermanentFailure, match=f"resolves to {ip_address(address)}"):
        await Webhook(destination, allow_list, Signer([SECRET]), network)(run())
    assert receiver.calls == []
