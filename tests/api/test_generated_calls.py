"""Calls that are generated from /openapi.json, right ones and wrong ones: no 5xx, and every answer is as it is told."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from pathlib import Path

import pytest

from api.app import ApiSettings
from api.leases import Leases
from ledger.connection import Pool
from ledger.shards import Shards
from tests.api.conftest import Past, with_history
from tests.api.owner import Owner
from tests.api.served import serving

# What the document promises. Not among them: that all it describes is accepted, for a schedule's rules are not in it.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "ignored_auth",
)
EXAMPLES = 5
WITHIN_S = int(os.environ.get("FENCEPOST_GENERATED_S", "25"))  # `make generated-calls` takes the time for all of them


@pytest.fixture
def settings(settings: ApiSettings, past: Past) -> ApiSettings:
    """Most calls are about runs that never were: nobody waits for a history that will not hear of them."""
    return dataclasses.replace(with_history(settings, past), history_catches_up_s=0.0)


@pytest.fixture
def patience_s() -> float:
    """Of calls for their commands: short, for most are generated to be repeated, not to be waited for."""
    return 0.2


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease call waits for a run, for as long as a minute."""

    async def nothing(*_: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(Leases, "_wait", nothing)


@pytest.mark.usefixtures("_impatient")
async def test_no_generated_call_finds_an_answer_that_is_not_told(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings, owner: Owner, tmp_path: Path
) -> None:
    """The same calls each time: what fails is printed as a call that can be repeated."""
    async with owner.applying_commands(), serving(shards, ledger_pool, settings, "admin") as served:
        generating = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{served.role.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {served.token}", "--checks", ",".join(CHECKS)),
            *("--phases", "examples,coverage,fuzzing", "--max-examples", f"{EXAMPLES}", "--max-time", f"{WITHIN_S}"),
            *("--seed", "7", "--generation-deterministic", "--warnings", "off"),
            *("--continue-on-failure", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told, _ = await generating.communicate()
    assert generating.returncode == 0, told.decode()
