"""Fixtures of the client's tests."""

from __future__ import annotations

import pytest

from tests.connectors.client.worker_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
