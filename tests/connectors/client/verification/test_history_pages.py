"""Pages of the real history, by the queries that a tenant may make: each event once, each partition's in its order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fencepost.models import Column, QueryAnswer
from fencepost.verification import history_pages
from fencepost.verification.event_source import Page
from fencepost.verification.events import JobEvent, RunEvent
from fencepost.verification.history_pages import HistoryPages
from streams.history_queries import HistoryQueries
from streams.history_store import HistoryStore
from streams.history_tables import RUN_EVENT_COLUMNS
from tests.connectors.client.verification.told import NOON, at

TENANT = "acme"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Queried:
    """Stands for the client: the history answers as it does behind the API."""

    def __init__(self, store: HistoryStore) -> None:
        self._queries = HistoryQueries(store)
        self.asked = 0

    async def query(self, sql: str, *, limit: int) -> QueryAnswer:
        self.asked += 1
        answer = self._queries.query(TENANT, sql, limit)
        return QueryAnswer([Column(*column) for column in answer.columns], answer.rows, answer.truncated)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    store = HistoryStore(tmp_path / "history.duckdb")
    yield store
    store.close()


def uuid_of(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012d}"


def micros(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - _EPOCH) // timedelta(microseconds=1)


def row(partition: int, offset: int, number: int, **fields: Any) -> tuple[Any, ...]:
    """A row of the history: an event of outbox row `number`, at that second after noon."""
    known: dict[str, Any] = {
        "event_id": f"0-{number}-0",
        "type": "run_scheduled",
        "happened_at": at(number),
        "tenant": TENANT,
        "job_id": uuid_of(1),
        "run_id": uuid_of(number),
        "version": 1,
        "queue": "mail",
        "lane": "normal",
        "partition": partition,
        "topic_offset": offset,
        **fields,
    }
    values = [known.get(name) for name in RUN_EVENT_COLUMNS]
    return tuple(micros(value) if isinstance(value, datetime) else value for value in values)


def append(store: HistoryStore, *rows: tuple[Any, ...]) -> None:
    store.append(rows, {})


def pages_of(store: HistoryStore, until: datetime | None = None) -> HistoryPages:
    return HistoryPages(Queried(store), NOON, until)  # type: ignore[arg-type]


async def numbers(pages: AsyncIterator[Page]) -> list[list[int]]:
    """Of each page the outbox rows' numbers."""
    return [[int(event.event_id.split("-")[1]) for event in page.events] async for page in pages]


def flat(pages: Sequence[Sequence[int]]) -> list[int]:
    return [number for page in pages for number in page]


async def test_each_event_of_the_range_comes_once_in_the_order_of_its_partition(store: HistoryStore) -> None:
    append(store, *(row(number % 3, number // 3 // 2, number) for number in range(600)))
    append(store, row(0, 500, 1000, tenant="other"), row(0, 501, 2000))
    pages = pages_of(store, at(600))
    assert await pages.measure() == 600
    found = flat(await numbers(pages.pages()))
    assert sorted(found) == list(range(600))
    for partition in range(3):
        ours = [number for number in found if number % 3 == partition]
        assert ours == sorted(ours)


async def test_a_page_that_is_full_goes_on_behind_its_last_whole_record(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_pages, "PAGE_ROWS", 25)
    monkeypatch.setattr(history_pages, "_PARTITIONS_A_QUERY", 2)
    append(store, *(row(number // 10 % 3, number // 30, number) for number in range(600)))  # records of ten events
    pages = pages_of(store)
    await pages.measure()
    found = await numbers(pages.pages())
    assert sorted(flat(found)) == list(range(600))
    assert max(map(len, found)) <= 25

    append(store, *(row(number // 10 % 3, number // 30, number) for number in range(600, 700)))
    new: list[int] = []
    while page := await pages.new_page():
        new += [int(event.event_id.split("-")[1]) for event in page]
    assert sorted(new) == list(range(600, 700))


async def test_what_comes_later_is_read_when_it_is_there_also_of_a_partition_that_had_nothing(
    store: HistoryStore,
) -> None:
    append(store, row(1, 40, 1))
    pages = pages_of(store)
    await pages.measure()
    assert flat(await numbers(pages.pages())) == [1]
    assert await pages.new_page() == []
    append(store, row(1, 41, 2), row(0, 0, 3), row(5, 7, 4))
    assert {event.event_id for event in await pages.new_page()} == {"0-2-0", "0-3-0", "0-4-0"}
    assert await pages.new_page() == []


async def test_nothing_there_yet_is_no_obstacle(store: HistoryStore) -> None:
    pages = pages_of(store)
    assert await pages.measure() == 0
    assert await numbers(pages.pages()) == []
    append(store, row(3, 0, 1))
    assert len(await pages.new_page()) == 1


async def test_an_event_has_all_that_the_history_knows_of_it(store: HistoryStore) -> None:
    terms = {"version": 2, "lease_token": 7, "worker_id": "w", "attempt": 1, "due_at": at(5), "scheduled_for": at(4)}
    append(
        store,
        row(0, 0, 8, type="run_leased", lease_expires_at=at(38), **terms),
        row(
            0,
            1,
            9,
            type="occurrences_skipped",
            run_id=None,
            scheduled_for=at(1),
            due_at=at(2),
            count=3,
            reason="paused",
        ),
    )
    pages = pages_of(store)
    await pages.measure()
    [[leased, skipped]] = [page.events async for page in pages.pages()]
    assert leased == RunEvent(
        *("0-8-0", "run_leased", at(8), uuid_of(1), uuid_of(8), 2, 7, "w", at(5), at(38), at(4)),
        queue="mail",
        attempt=1,
        tenant=TENANT,
    )
    assert skipped == JobEvent(
        *("0-9-0", "occurrences_skipped", at(9), uuid_of(1), 1, at(1), at(2), "paused", 3), queue="mail", tenant=TENANT
    )


async def test_the_past_of_runs_is_found_whenever_it_was(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_pages, "PAGE_ROWS", 9)
    for version in (1, 2, 3):
        append(store, *(row(0, version, -100 * version, run_id=uuid_of(n), version=version) for n in range(1, 6)))
    first_seen = {uuid_of(number): 3 for number in range(1, 6)}
    past = await pages_of(store).past_of(first_seen)
    assert [(event.run_id, event.version) for event in past] == [(uuid_of(n), v) for n in range(1, 6) for v in (1, 2)]


async def test_recurring_jobs_are_found_as_they_were_when_the_range_began(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_pages, "PAGE_ROWS", 2)
    cron, often = ({"schedule": schedule} for schedule in ({"cron": "0 9 * * *"}, {"everySeconds": 60}))
    once = {"schedule": {"runAt": "2026-03-01T12:00:00Z"}}

    def job(number: int, version: int, kind: str, seconds: int, definition: object | None) -> tuple[Any, ...]:
        text = None if definition is None else json.dumps(definition)
        fields = {"job_id": uuid_of(number), "run_id": None, "version": version, "type": kind, "definition": text}
        event_id = f"0-{number}-{version}"
        return row(0, 0, seconds, event_id=event_id, scheduled_for=at(-900), due_at=at(version), **fields)

    append(
        store,
        job(1, 1, "job_created", -900, cron),
        *(job(2, 1, "job_created", -900, cron), job(2, 2, "job_updated", -800, often)),
        job(2, 3, "job_updated", 100, cron),
        *(job(3, 1, "job_created", -900, often), job(3, 2, "job_paused", -800, often)),
        job(3, 3, "job_updated", -700, often),
        *(job(4, 1, "job_created", -900, often), job(4, 2, "job_deleted", -800, None)),
        job(5, 1, "job_created", -900, once),
        job(6, 1, "job_created", 100, often),
        *(job(7, 1, "job_created", -900, often), job(7, 2, "occurrences_skipped", -800, None)),
    )
    found = [start async for start in pages_of(store).jobs_at_start()]
    assert [(each.defined.job_id, each.defined.version, each.is_paused) for each in found] == [
        (uuid_of(1), 1, False),
        (uuid_of(2), 2, False),
        (uuid_of(3), 3, True),
        (uuid_of(7), 1, False),
    ]
    assert (found[1].defined.first, found[1].defined.last) == (at(-900), at(2))
    assert json.loads(found[1].defined.definition or "") == often
