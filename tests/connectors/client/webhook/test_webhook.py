"""The handler, against a receiver on a real loopback port."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fencepost import PermanentFailure, RetryLater
from fencepost.webhook.webhook import REDIRECTS_MAX, RESPONSE_MAX_BYTES, Webhook
from tests.connectors.client.webhook.receiver import (
    JOB_ID,
    NOW_S,
    RUN_ID,
    Call,
    Receiver,
    answer,
    case,
    fixed,
    json_answer,
    names,
    never,
    receiving,
    run,
    webhook,
)
from tests.connectors.client.worker_bench import Bench

HOST = "hooks.example.com"


async def test_a_call_carries_the_payload_the_run_and_a_signature(receiver: Receiver) -> None:
    await webhook(receiver.url)(run({"to": "ops", "n": [1, None]}, attempt=2, lease_token=7))
    [call] = receiver.calls
    assert (call.line, call.body) == ("POST /hook HTTP/1.1", b'{"to":"ops","n":[1,null]}')
    assert {name: value for name, value in call.headers.items() if name != "webhook-signature"} == {
        "host": f"127.0.0.1:{receiver.port}",
        "accept": "application/json",
        "accept-encoding": "identity",
        "connection": "close",
        "content-length": str(len(call.body)),
        "content-type": "application/json",
        "user-agent": "fencepost-webhook",
        "idempotency-key": str(RUN_ID),
        "fencepost-run-id": str(RUN_ID),
        "fencepost-job-id": str(JOB_ID),
        "fencepost-attempt": "2",
        "fencepost-lease-token": "7",
        "fencepost-scheduled-for": "2026-03-01T09:00:00Z",
        "webhook-id": str(RUN_ID),
        "webhook-timestamp": str(int(NOW_S)),
    }
    assert call.headers["webhook-signature"].startswith("v1,")


async def test_the_json_of_the_answer_is_the_result_of_the_run(receiver: Receiver, bench: Bench) -> None:
    receiver.answering = fixed(json_answer({"sent": ["a"], "text": "ä\0"}, 202))
    [run_id] = bench.server.add({"to": "ops"})
    async with bench.working(webhook(receiver.url)):
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    assert bench.server.runs[run_id].result == {"sent": ["a"], "text": "ä\0"}


async def outcome_of(handler: Webhook, payload: Any = None) -> str:
    try:
        await handler(run(payload))
    except RetryLater:
        return "retry"
    except PermanentFailure:
        return "final"
    return "completed"


async def test_answers_are_tried_again_or_final_as_the_case_says(receiver: Receiver) -> None:
    """Case rty-009."""
    given, expected = case("rty-009")["input"], case("rty-009")["expected"]
    outcomes = {}
    for status in given["status"]:
        if status == "timeout":
            receiver.answering = never
            handler = webhook(receiver.url, timeout_s=0.2)
        elif status == "connection refused":
            with socket.socket() as bound:  # and nobody listens
                bound.bind(("127.0.0.1", 0))
                outcomes[status] = await outcome_of(webhook(f"http://127.0.0.1:{bound.getsockname()[1]}/"))
            continue
        else:
            receiver.answering = fixed(answer(status))
            handler = webhook(receiver.url)
        outcomes[status] = await outcome_of(handler)
    assert outcomes == {status: outcome for outcome, statuses in expected.items() for status in statuses}


async def test_a_run_comes_again_after_what_the_receiver_asked_for(receiver: Receiver, bench: Bench) -> None:
    receiver.answering = fixed(answer(429, retry_after="120"))
    [run_id] = bench.server.add(None)
    async with bench.working(webhook(receiver.url)):
        await bench.server.until(lambda: bench.server.runs[run_id].errors != [])
    assert (bench.server.runs[run_id].state, bench.server.runs[run_id].retry_after_s) == ("pending", 120)


async def test_a_run_that_is_tried_again_keeps_its_ids_and_dies_with_the_receiver_s_words(
    receiver: Receiver, bench: Bench
) -> None:
    receiver.answering = fixed(answer(503, b"later"), answer(410, b"moved away"))
    [run_id] = bench.server.add(None)
    async with bench.working(webhook(receiver.url)):
        await bench.server.until(lambda: bench.server.states() == ["dead"])
    assert bench.server.runs[run_id].errors == ["HTTP 503 from 127.0.0.1: later", "HTTP 410 from 127.0.0.1: moved away"]
    ids = {(call.headers["idempotency-key"], call.headers["webhook-id"]) for call in receiver.calls}
    assert ids == {(str(run_id), str(run_id))}
    assert [call.headers["fencepost-attempt"] for call in receiver.calls] == ["1", "2"]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"HTTP/1.1 200 \r\n",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 \r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 \r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
    ],
)
async def test_an_answer_that_breaks_off_is_none(receiver: Receiver, broken: bytes) -> None:
    receiver.answering = fixed(broken)
    with pytest.raises(RetryLater, match=r"^127\.0\.0\.1 broke off: "):
        await webhook(receiver.url)(run())


async def test_of_an_answer_without_end_only_so_much_is_read(receiver: Receiver) -> None:
    longest, longer = (json_answer("x" * (size - 2)) for size in (RESPONSE_MAX_BYTES, RESPONSE_MAX_BYTES + 1))
    endless = answer(200, b"1" * (RESPONSE_MAX_BYTES + 1), content_type="application/json", content_length="9" * 15)
    receiver.answering = fixed(longest, longer, endless)
    handler = webhook(receiver.url)
    assert len(await handler(run()) or b"") == RESPONSE_MAX_BYTES
    assert await handler(run()) is None
    assert await handler(run()) is None


async def test_an_answer_that_was_packed_is_not_unpacked(receiver: Receiver) -> None:
    bomb = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
    receiver.answering = fixed(answer(200, bomb, content_type="application/json", content_encoding="gzip"))
    assert await webhook(receiver.url)(run()) is None


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_method_is_followed_with_everything(receiver: Receiver, status: int) -> None:
    receiver.answering = fixed(answer(status, location="/moved?x=1"), json_answer("here"))
    assert await webhook(receiver.url)(run([1])) == msgspec.Raw(b'"here"')
    first, second = receiver.calls
    assert second == Call("POST /moved?x=1 HTTP/1.1", first.headers, first.body)


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_change_the_method_is_final(receiver: Receiver, status: int) -> None:
    receiver.answering = fixed(answer(status, location="/moved"))
    with pytest.raises(PermanentFailure, match=f"HTTP {status} from"):
        await webhook(receiver.url)(run())
    assert len(receiver.calls) == 1


async def test_redirects_in_a_circle_end(receiver: Receiver) -> None:
    receiver.answering = fixed(answer(307, location="/hook"))
    with pytest.raises(PermanentFailure, match="more than 3 redirects"):
        await webhook(receiver.url)(run())
    assert len(receiver.calls) == 1 + REDIRECTS_MAX


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://evil.example/", "evil.example port 80 is not on the allow-list"),
        ("http://127.0.0.1:1/", "127.0.0.1 port 1 is not on the allow-list"),
        ("http://inside.example.com/", "inside.example.com resolves to 10.0.0.1, which is not public"),
        ("http://meta.example.com/", "meta.example.com resolves to 169.254.169.254, which is not public"),
        ("http://2130706433/", "2130706433 is an address in an odd spelling"),
        ("http://user@127.0.0.1/", "the URL carries a user"),
        ("file:///etc/passwd", "the URL is no absolute https URL"),
    ],
)
async def test_a_redirect_is_checked_as_the_first_url_is(receiver: Receiver, location: str, reason: str) -> None:
    hosts = {"inside.example.com": ["10.0.0.1"], "meta.example.com": ["8.8.8.8", "169.254.169.254"]}
    receiver.answering = fixed(answer(307, location=location))
    with pytest.raises(PermanentFailure, match=f"^not called: {reason}"):
        await webhook(receiver.url, "*.example.com", resolver=names(hosts))(run())
    assert len(receiver.calls) == 1


async def test_loopback_is_not_called_unless_it_was_allowed(receiver: Receiver) -> None:
    for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "localhost"):
        with pytest.raises(PermanentFailure, match="is not public and was not allowed"):
            await webhook(f"http://{host}:{receiver.port}/", private=False)(run())
    assert receiver.calls == []


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1%eth0"])
async def test_one_bad_address_among_good_ones_is_enough(receiver: Receiver, address: str) -> None:
    handler = webhook(f"http://{HOST}:{receiver.port}/", resolver=names({HOST: ["127.0.0.1", address]}))
    with pytest.raises(PermanentFailure, match=f"{HOST} resolves to {address}"):
        await handler(run())
    assert receiver.calls == []


async def test_a_name_is_resolved_once_a_call_and_what_it_said_is_what_is_connected_to(receiver: Receiver) -> None:
    """A name that says one address when it is checked, and another one when it is connected to."""
    asked: list[str] = []

    async def rebinding(host: str, _: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    handler = webhook(f"http://{HOST}:{receiver.port}/", resolver=rebinding)
    await handler(run())
    assert asked == [HOST]
    assert receiver.calls[0].headers["host"] == f"{HOST}:{receiver.port}"
    with pytest.raises(PermanentFailure, match=r"169\.254\.169\.254"):
        await handler(run())
    assert len(receiver.calls) == 1


async def test_the_next_address_is_tried_when_one_takes_no_connection(receiver: Receiver) -> None:
    handler = webhook(f"http://{HOST}:{receiver.port}/", resolver=names({HOST: ["127.0.0.2", "127.0.0.1"]}))
    await handler(run())
    assert len(receiver.calls) == 1


async def test_a_name_that_nobody_knows_is_tried_again() -> None:
    async def unknown(_: str, __: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(RetryLater, match=f"{HOST} cannot be reached: its name was not resolved: Name or service"):
        await webhook(f"http://{HOST}/", resolver=unknown)(run())


async def test_proxies_of_the_environment_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    await webhook(receiver.url)(run())
    assert receiver.calls[0].line == "POST /hook HTTP/1.1"


async def test_a_handler_that_is_cancelled_hangs_up(receiver: Receiver) -> None:
    came = asyncio.Event()

    async def stall(call: Call) -> bytes:
        came.set()
        return await never(call)

    receiver.answering = stall
    calling = asyncio.create_task(webhook(receiver.url)(run()))
    await came.wait()
    calling.cancel()
    async with asyncio.timeout(30):
        await receiver.hung_up.wait()


async def test_as_many_calls_as_slots_are_under_way(receiver: Receiver, bench: Bench) -> None:
    all_there = asyncio.Event()

    async def wait_for_all(_: Call) -> bytes:
        if len(receiver.calls) == 30:
            all_there.set()
        await all_there.wait()
        return answer(204)

    receiver.answering = wait_for_all
    bench.server.add(*range(30))
    async with bench.working(webhook(receiver.url), slots=30):
        await bench.server.until(lambda: bench.server.states() == ["completed"] * 30, timeout_s=30)


async def test_a_payload_brings_its_url_when_it_may(receiver: Receiver) -> None:
    handler = webhook(None, f"127.0.0.1:{receiver.port}")
    await handler(run({"url": receiver.url, "body": {"a": 1}}))
    await handler(run({"url": receiver.url}))
    assert [call.body for call in receiver.calls] == [b'{"a":1}', b"null"]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "the payload is not"),
        ({"url": 1}, "the payload is not"),
        ({"body": 1}, "the payload is not"),
        ({"url": "https://a.example", "headers": {}}, "unknown field `headers`"),
        ({"url": "https://a.example"}, r"not called: a\.example port 443 is not on the allow-list"),
        ({"url": "http://0x7f000001/"}, "not called: 0x7f000001 is an address in an odd spelling"),
    ],
)
async def test_a_payload_whose_url_is_none_or_not_allowed_is_final(payload: Any, reason: str) -> None:
    with pytest.raises(PermanentFailure, match=reason):
        await webhook(None, "hooks.example.com")(run(payload))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key, and a certificate of HOST that is its own authority, in one file."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file = tmp_path / "certificate.pem"
    file.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()) + signed.public_bytes(pem))
    return file


async def test_tls_is_with_the_host_and_the_connection_with_the_address_that_was_checked(certificate: Path) -> None:
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate)
    named: list[str | None] = []
    server_tls.sni_callback = lambda _, name, __: named.append(name)
    client_tls = ssl.create_default_context(cafile=str(certificate))
    async with receiving(server_tls) as receiver:
        resolver = names({HOST: ["127.0.0.1"], "other.example.com": ["127.0.0.1"]})
        await webhook(f"https://{HOST}:{receiver.port}/", resolver=resolver, tls=client_tls)(run())
        assert named == [HOST]
        assert receiver.calls[0].headers["host"] == f"{HOST}:{receiver.port}"
        for wrong in ("other.example.com", "127.0.0.1"):
            with pytest.raises(RetryLater, match=f"{wrong} cannot be reached: .*certificate"):
                await webhook(f"https://{wrong}:{receiver.port}/", resolver=resolver, tls=client_tls)(run())
        with pytest.raises(RetryLater, match="self-signed certificate"):  # to the authorities of the system
            await webhook(f"https://{HOST}:{receiver.port}/", resolver=resolver)(run())
    assert len(receiver.calls) == 1
