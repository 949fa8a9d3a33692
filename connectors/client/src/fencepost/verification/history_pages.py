"""A tenant's events out of the history, by the query API: page by page, each partition's in the order of its topic.

A page costs the server a look at the records of a stretch of offsets, wherever in the history it lies. Partitions are
independent: a job and its runs are in one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from fencepost.client import FencepostClient
from fencepost.verification.event_source import Page, Start
from fencepost.verification.events import Event, JobEvent, RunEvent, instant_text

PAGE_ROWS = 10_000
_IDS_A_QUERY = 400  # 20,000 characters are the most that a query may have
_PARTITIONS_A_QUERY = 1_500
_FIRST_STRETCH = 64  # offsets
_NO_ID = "00000000-0000-0000-0000-000000000000"

_COLUMNS = """event_id, type, happened_at, job_id, run_id, version, lease_token, worker_id, due_at, lease_expires_at,
scheduled_for, reason, queue, attempt, tenant, count, definition, "partition", topic_offset"""


class HistoryPages:
    """Events that happened from `since` on and, if `until` is given, before it."""

    def __init__(self, client: FencepostClient, since: datetime, until: datetime | None = None) -> None:
        self._client = client
        self._since = since
        bounds = f"happened_at >= {_instant(since)}"
        self._range = bounds if until is None else f"{bounds} AND happened_at < {_instant(until)}"
        self._first = 0  # offset of any partition, of what was measured
        self._read: dict[int, int] = {}  # through which offset of each partition everything was read

    async def measure(self) -> int:
        """How many events are there now: those that `pages` will give."""
        of_each = '"partition", min(topic_offset), max(topic_offset), count(*)'
        rows = await self._rows(f'SELECT {of_each} FROM run_events WHERE {self._range} GROUP BY "partition"')
        self._first = min((first for _, first, _, _ in rows), default=0)
        self._read = {partition: last for partition, _, last, _ in rows}
        return sum(count for *_, count in rows)

    async def pages(self) -> AsyncIterator[Page]:
        """What was there when it was measured; the size of a page is the number of its events."""
        for first in range(0, max(self._read, default=-1) + 1, _PARTITIONS_A_QUERY):
            ends = [self._read.get(each, -1) for each in range(first, first + _PARTITIONS_A_QUERY)]
            async for page in self._sweep(first, ends[: max(self._read) - first + 1]):
                yield page

    async def _sweep(self, first: int, ends: Sequence[int]) -> AsyncIterator[Page]:
        """Stretch by stretch of offsets, as long as a page has room for; all of these partitions at once."""
        offset, partition, stretch = self._first, -1, _FIRST_STRETCH
        while offset <= max(ends):
            through = offset + stretch - 1
            rows = await self._rows(
                f"""SELECT {_COLUMNS} FROM run_events WHERE {self._range}
                AND topic_offset BETWEEN {offset} AND {through}
                AND (topic_offset > {offset} OR "partition" > {partition})
                AND "partition" BETWEEN {first} AND {first + len(ends) - 1}
                AND topic_offset <= list_extract({list(ends)}, "partition" - {first} + 1)
                ORDER BY topic_offset, "partition" LIMIT {PAGE_ROWS}"""
            )
            if len(rows) == PAGE_ROWS:
                rows = _whole_records(rows)
                offset, partition = rows[-1][-1], rows[-1][-2]
                stretch = max(1, stretch // 2)
            else:
                offset, partition = through + 1, -1
                stretch = stretch * 2 if len(rows) < PAGE_ROWS // 2 else stretch
            if rows:
                yield Page(_events(rows), len(rows))

    async def new_page(self) -> list[Event]:
        """What has come since, at most a page of it; empty when nothing has."""
        known = max(self._read, default=-1) + 1
        for first in range(0, known + 1, _PARTITIONS_A_QUERY):
            reads = [self._read.get(each, -1) for each in range(first, min(known, first + _PARTITIONS_A_QUERY))]
            is_last = first + _PARTITIONS_A_QUERY > known
            upper = "" if is_last else f'AND "partition" < {first + _PARTITIONS_A_QUERY}'
            rows = await self._rows(
                f"""SELECT {_COLUMNS} FROM run_events WHERE {self._range} AND "partition" >= {first} {upper}
                AND topic_offset > ifnull(list_extract({reads or [-1]}, "partition" - {first} + 1), -1)
                ORDER BY topic_offset, "partition" LIMIT {PAGE_ROWS}"""
            )
            rows = _whole_records(rows) if len(rows) == PAGE_ROWS else rows
            for row in rows:
                self._read[row[-2]] = max(row[-1], self._read.get(row[-2], -1))
            if rows:
                return _events(rows)
        return []

    async def past_of(self, first_seen: Mapping[str, int]) -> list[RunEvent]:
        """The events of these runs with a version below the one that was seen first, in the order of their versions."""
        left, found, size = sorted(first_seen), list[RunEvent](), _IDS_A_QUERY
        while left:
            listed = ", ".join(f"'{run_id}'" for run_id in left[:size])
            rows = await self._rows(f"SELECT {_COLUMNS} FROM run_events WHERE run_id IN ({listed}) LIMIT {PAGE_ROWS}")
            if len(rows) == PAGE_ROWS and size > 1:
                size //= 2
                continue
            left = left[size:]
            found += [event for event in _events(rows) if isinstance(event, RunEvent)]
        older = [event for event in found if event.version < first_seen[event.run_id]]
        return sorted(older, key=lambda event: (event.run_id, event.version))

    async def jobs_at_start(self) -> AsyncIterator[Start]:
        """The recurring jobs that were there when the range began, and not deleted."""
        last = _NO_ID
        while True:
            rows = await self._rows(_JOBS.format(since=_instant(self._since), last=last, limit=PAGE_ROWS))
            for job_id, event_id, type_, at, version, created, cursor, definition, queue, tenant, state in rows:
                defined = JobEvent(
                    *(event_id, type_, _time(at), job_id, version, _time(created), _time(cursor)),
                    definition=definition,
                    queue=queue,
                    tenant=tenant,
                )
                yield Start(defined, is_paused=state == "job_paused")
            if len(rows) < PAGE_ROWS:
                return
            last = rows[-1][0]

    async def close(self) -> None:
        """The client is its owner's to close."""

    async def _rows(self, sql: str) -> list[Sequence[Any]]:
        return list((await self._client.query(sql, limit=PAGE_ROWS)).rows)


# The newest event with a definition has the cursor as it was then. An edit says nothing of a pause.
_JOBS = """
SELECT job_id, event_id, type, happened_at, version, scheduled_for, due_at, definition, queue, tenant, state FROM (
    SELECT job_id, arg_max(event_id, version) FILTER (definition IS NOT NULL) AS event_id,
           arg_max(type, version) FILTER (definition IS NOT NULL) AS type,
           arg_max(happened_at, version) FILTER (definition IS NOT NULL) AS happened_at, max(version) AS version,
           arg_max(scheduled_for, version) FILTER (definition IS NOT NULL) AS scheduled_for,
           arg_max(due_at, version) FILTER (definition IS NOT NULL) AS due_at,
           arg_max(definition, version) AS definition, any_value(queue) AS queue, any_value(tenant) AS tenant,
           arg_max(type, version) FILTER (type <> 'job_updated') AS state
    FROM run_events
    WHERE run_id IS NULL AND type <> 'occurrences_skipped' AND happened_at < {since} AND job_id > '{last}'
    GROUP BY job_id
) AS jobs
WHERE state <> 'job_deleted' AND (json_exists(definition, '$.schedule.cron')
                                  OR json_exists(definition, '$.schedule.everySeconds'))
ORDER BY job_id LIMIT {limit}
"""


def _instant(instant: datetime) -> str:
    return f"'{instant_text(instant)}'::TIMESTAMPTZ"


def _time(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text)


def _whole_records(rows: list[Sequence[Any]]) -> list[Sequence[Any]]:
    """Without those of the last record, which may have more; a record has far fewer events than a page."""
    last = (rows[-1][-1], rows[-1][-2])
    return [row for row in rows if (row[-1], row[-2]) != last]


def _events(rows: Iterable[Sequence[Any]]) -> list[Event]:
    """In the order of the topic: within a record, by what the ledger has numbered."""
    return [_event(row) for row in sorted(rows, key=_place)]


def _place(row: Sequence[Any]) -> tuple[Any, ...]:
    _, number, index = str(row[0]).rsplit("-", 2)
    return row[-1], row[-2], int(number), int(index)


def _event(row: Sequence[Any]) -> Event:
    (event_id, type_, at, job_id, run_id, version, token, worker, due_at, expires_at, scheduled_for, reason, queue,
     attempt, tenant, count, definition, *_) = row  # fmt: skip
    if run_id is None:
        return JobEvent(
            *(event_id, type_, _time(at), job_id, version, _time(scheduled_for), _time(due_at), reason, count),
            definition,
            queue,
            tenant,
        )
    return RunEvent(
        *(event_id, type_, _time(at), job_id, run_id, version, token, worker, _time(due_at), _time(expires_at)),
        _time(scheduled_for),
        reason,
        queue,
        attempt,
        tenant,
    )
