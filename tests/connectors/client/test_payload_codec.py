"""Payloads and results that only producers and workers can read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.fernet import Fernet

from fencepost import InvalidInput, PermanentFailure, RunContext, opened
from fencepost.job_spec import PAYLOAD_MAX_BYTES
from fencepost.sealing import sealed
from tests.connectors.client.worker_bench import Bench

SECRET = {"card": "4111 1111 1111 1111"}


class Shouting:
    """No cipher: what it makes of a text can be seen."""

    def encrypt(self, data: bytes) -> bytes:
        return data.hex().encode()

    def decrypt(self, token: bytes) -> bytes:
        return bytes.fromhex(token.decode())


def envelope(value: Any, codec: Fernet | Shouting) -> Any:
    return {"encrypted": codec.encrypt(json.dumps(value).encode()).decode()}


async def test_a_worker_opens_payloads_and_seals_results(bench: Bench) -> None:
    codec = Fernet(Fernet.generate_key())
    [run_id] = bench.server.add(envelope(SECRET, codec))
    seen: list[Any] = []

    async def charge(ctx: RunContext) -> dict[str, str]:
        seen.append(ctx.payload)
        return {"charged": ctx.payload["card"]}

    async with bench.working(charge, payload_codec=codec):
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    result = bench.server.runs[run_id].result
    assert seen == [SECRET]
    assert result.keys() == {"encrypted"}
    assert "4111" not in str(result)
    assert opened(result, codec) == {"charged": SECRET["card"]}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (SECRET, "it is not encrypted, and this worker takes nothing that is not"),
        (
            envelope(SECRET, Fernet(Fernet.generate_key())),
            "it cannot be decrypted with this worker's key: InvalidToken",
        ),
        ({"encrypted": "no token"}, "it cannot be decrypted with this worker's key: InvalidToken"),
        ({"encrypted": 1}, "it is not encrypted, and this worker takes nothing that is not"),
    ],
)
async def test_what_nobody_with_the_key_has_sealed_no_handler_sees(bench: Bench, payload: Any, reason: str) -> None:
    [run_id] = bench.server.add(payload)
    called: list[RunContext] = []
    async with bench.working(called.append, payload_codec=Fernet(Fernet.generate_key())):
        await bench.server.until(lambda: bench.server.states() == ["dead"])
    assert called == []
    assert bench.server.runs[run_id].errors == [reason]


async def test_a_result_counts_as_large_as_its_ciphertext(bench: Bench) -> None:
    [run_id] = bench.server.add(None)
    async with bench.working(lambda _: "x" * (PAYLOAD_MAX_BYTES // 2), payload_codec=Shouting()):
        await bench.server.until(lambda: bench.server.states() == ["dead"])
    assert bench.server.runs[run_id].errors == [
        f"the handler's result is {PAYLOAD_MAX_BYTES + 20} bytes, more than 65536"
    ]


def test_no_payload_stays_none_and_a_codec_that_gives_no_text_is_refused() -> None:
    class Binary(Shouting):
        def encrypt(self, data: bytes) -> bytes:
            return b"\xff" + data

    assert sealed(None, Shouting()) is opened(None, Shouting()) is None
    assert opened(sealed([1], None), None) == [1]
    with pytest.raises(InvalidInput, match="is not ASCII"):
        sealed([1], Binary())
    with pytest.raises(PermanentFailure):
        opened("x", Shouting())
