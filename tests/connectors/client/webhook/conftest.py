"""Fixtures of the webhook worker's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.connectors.client.webhook.receiver import Receiver, receiving


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver
