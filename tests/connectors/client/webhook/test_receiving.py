"""A receiver that verifies as the client's README says takes the worker's calls, and no others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.connectors.client.webhook.receiver import SECRET, Call, receiving, run, webhook
from tests.docs.papers import blocks

NEW_SECRET = "whsec_" + "QUJD" * 11
IsGenuine = Callable[[Mapping[str, str], bytes, str], bool]


@pytest.fixture
def is_genuine() -> IsGenuine:
    [snippet] = [block for block in blocks("connectors/client/README.md", "python") if "def is_genuine" in block]
    names: dict[str, Any] = {}
    exec(compile(snippet, "connectors/client/README.md", "exec"), names)
    found: IsGenuine = names["is_genuine"]
    return found


async def called(*secrets: str, age_s: float = 0) -> Call:
    """A call as it came."""
    async with receiving() as receiver:
        await webhook(receiver.url, secrets=secrets, clock=lambda: time.time() - age_s)(run({"to": "ä"}))
        return receiver.calls[0]


async def test_a_call_is_genuine_to_who_has_one_of_its_secrets(is_genuine: IsGenuine) -> None:
    call = await called(NEW_SECRET, SECRET)
    assert is_genuine(call.headers, call.body, SECRET)
    assert is_genuine(call.headers, call.body, NEW_SECRET)


async def test_a_call_is_not_genuine_when_anything_that_is_signed_is_another(is_genuine: IsGenuine) -> None:
    call = await called(SECRET)
    later = str(int(call.headers["webhook-timestamp"]) + 1)
    assert not is_genuine(call.headers, call.body + b" ", SECRET)
    assert not is_genuine(call.headers, call.body, NEW_SECRET)
    assert not is_genuine(call.headers | {"webhook-timestamp": later}, call.body, SECRET)
    assert not is_genuine(call.headers | {"webhook-id": "another"}, call.body, SECRET)


@pytest.mark.parametrize("age_s", [3_600, -3_600])
async def test_a_call_of_another_hour_is_not_genuine(is_genuine: IsGenuine, age_s: float) -> None:
    call = await called(SECRET, age_s=age_s)
    assert not is_genuine(call.headers, call.body, SECRET)
