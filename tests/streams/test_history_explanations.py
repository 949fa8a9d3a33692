"""What the history tells for explanations is of one instant, whatever it takes in meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from streams import history_explanations
from streams.history_explanations import HistoryExplanations
from streams.history_store import HistoryStore
from tests.streams.event_samples import JOB_ID, START, run_row


async def test_a_version_is_not_told_without_the_events_up_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HistoryStore(tmp_path / "history.duckdb")
    store.append([run_row(None, 1, "job_created", definition="{}", dueAt=START)], {0: 1})
    skipped = run_row(None, 2, "occurrences_skipped", offset=1, scheduledFor=START, dueAt=START, count=1, reason="why")
    rows, asked = history_explanations._rows, 0

    def take_in_more_after_the_first(answer: Any) -> list[dict[str, Any]]:
        nonlocal asked
        asked += 1
        if asked == 2:
            store.append([skipped], {0: 2})
        return rows(answer)

    monkeypatch.setattr(history_explanations, "_rows", take_in_more_after_the_first)
    app = Starlette(routes=list(HistoryExplanations(store).routes()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://history") as client:
        path, at = f"/jobs/{JOB_ID}/occurrence", {"at": START.isoformat()}
        before = (await client.get(path, params=at)).json()
        after = (await client.get(path, params=at)).json()
    store.close()
    assert (before["version"], len(before["ranges"])) == (1, 0)
    assert (after["version"], len(after["ranges"])) == (2, 1)
