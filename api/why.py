"""GET /v1/runs/{id}/why and GET /v1/jobs/{id}/why: where a run's time went, and what became of an occurrence.

The run's events tell where it was; the ledger's pauses, takeovers and limits of live runs, and the leases of its job's
other runs, tell what kept it there. schemas/waits.py makes intervals of them that sum up to the lateness exactly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from api.auth import require_queue
from api.ended_attempts import ASK_AGAIN_S
from api.endpoints import Call
from api.history_client import HistoryClient, KnownEvent, KnownLease, KnownOccurrence
from api.jobs import Jobs
from api.occurrence_decisions import decision_of
from api.places import while_full
from api.problems import not_found
from api.quota_waits import Slices, slices_of, used_up
from api.turns import between_leases, goes_in_turn, while_leased
from ledger.completions import what_ended
from ledger.connection import Connection, session
from ledger.explanations import read_ownership
from ledger.jobs import Job, read_jobs
from ledger.partitions import Tenure, list_takeovers
from ledger.pauses import Pause, list_pauses
from ledger.runs import RunState, read_run, read_runs
from ledger.shards import Shards
from ledger.tenant_limits import read_quota
from ledger.tokens import Identity
from schemas import http_explanations as http
from schemas.events import GONE_EVENTS
from schemas.http import NoBody
from schemas.ids import partition_of_run, run_id_for
from schemas.waits import Hindrance, Interval, LifeEvent, Timeline, nominal_due, timeline

_ENDS = GONE_EVENTS - {"run_held"}
_STATES = {"run_held": "held", "run_leased": "leased", "run_cancel_requested": "leased"}


class Why:
    def __init__(self, shards: Shards, history: HistoryClient, jobs: Jobs) -> None:
        self._shards = shards
        self._history = history
        self._jobs = jobs

    async def run(self, call: Call[NoBody]) -> http.RunWhy:
        """Explain where a run's time went."""
        return await self._explain(call.identity, call.id("run"))

    async def occurrence(self, call: Call[http.OccurrenceQuery]) -> http.OccurrenceWhy:
        """Explain what became of a job's occurrence."""
        job = await self._jobs.known(call)
        at = call.body.at.astimezone(UTC)
        until = self._history.deadline()
        while True:
            known = await self._history.occurrence(job.job_id, at)
            answer = await self._decision(call.identity, job, at, known)
            # What is on its way from the relay to the history stands in neither.
            behind = known.version < job.version or answer.decision == "unrecorded"
            if not behind or time.monotonic() >= until:
                return answer
            await asyncio.sleep(ASK_AGAIN_S)

    async def _decision(self, identity: Identity, job: Job, at: datetime, known: KnownOccurrence) -> http.OccurrenceWhy:
        run_id = run_id_for(job.job_id, at, job.partition)
        async with session(self._shards.of_run(run_id)) as conn:
            there = await read_run(conn, run_id) or await what_ended(conn, run_id)
            now = (await read_ownership(conn, job.partition)).now
        run = None
        if there or any(run.run_id == run_id for run in known.runs):
            run = await self._explain(identity, run_id)
        answer = decision_of(job, at, known, run, now)
        answer.incomplete = known.version < job.version
        answer.other_run_ids = [run.run_id for run in known.runs if run.run_id != run_id]
        return answer

    async def _explain(self, identity: Identity, run_id: UUID) -> http.RunWhy:
        """Raises Problem 404, or 403 for another queue's, and HistoryAway."""
        row, events, incomplete = await self._life(run_id)
        found = row or (events[-1] if events else None)
        if found is None or found.tenant != identity.tenant:
            raise not_found("run")
        require_queue(identity, found.queue)
        life = [LifeEvent(*(getattr(event, name) for name in LifeEvent._fields)) for event in events]
        async with session(self._shards.of_run(run_id)) as conn:
            job = (await read_jobs(conn, [found.job_id])).get(found.job_id)
            ownership = await read_ownership(conn, partition_of_run(run_id))
            since = _since_when(life, ownership.now)
            hindrances = await _hindrances(conn, run_id, found.tenant, found.queue, since)
            quota = await read_quota(conn, found.tenant)
        if ownership.owner is None:
            sentence = "its partition has no owner"
            hindrances.append(Hindrance("owner_taking_over", ownership.owner_since, None, sentence))
        if row is not None and row.state == "pending":
            async with session(self._shards.home) as conn:
                hindrances += await while_full(conn, row)
        if events and _is_gated(row, job):
            leases = await self._history.job_leases(found.job_id, since, ownership.now)
            others = [lease for lease in leases if lease.run_id != run_id]
            hindrances += while_leased(others)
            if goes_in_turn(row, events):
                hindrances += between_leases(others, await self._waiting(found.job_id, others))
        told = timeline(life, hindrances, ownership.now)
        if quota and (slices := slices_of(quota, told)):
            leased = await self._leased(found.tenant, slices)
            told = timeline(life, [*hindrances, *used_up(quota, slices, leased)], ownership.now)
        return _answer(run_id, row, events, told, incomplete, ownership.now)

    async def _life(self, run_id: UUID) -> tuple[RunState | None, list[KnownEvent], bool]:
        """The ledger's row and the history's events, and whether newer events have not come in time.

        An ended run whose events are between relay and history is nowhere: one of which nothing is known is waited for.
        """
        until = self._history.deadline()
        while True:
            async with session(self._shards.of_run(run_id)) as conn:
                row = await read_run(conn, run_id)
            events = await self._history.run_events(run_id)
            complete = _is_complete(row, events)
            if complete or time.monotonic() >= until:
                return row, events, not complete
            await asyncio.sleep(ASK_AGAIN_S)

    async def _leased(self, tenant: str, slices: Slices) -> dict[int, int]:
        """How many leases the tenant had in each slice."""
        _, end = slices.bounds(slices.count - 1)
        return await self._history.tenant_leases(tenant, slices.start, end, slices.length)

    async def _waiting(self, job_id: UUID, leases: Sequence[KnownLease]) -> set[UUID]:
        """Those of the job's runs that wait to be leased again."""
        async with session(self._shards.of_job(job_id)) as conn:
            live = await read_runs(conn, [lease.run_id for lease in leases])
        return {run.run_id for run in live if run.state == "pending"}


def _since_when(life: Sequence[LifeEvent], now: datetime) -> datetime:
    """The earliest instant that an explanation of this life can tell of."""
    instants = [event.due_at or event.at for event in life]
    return min([*instants, nominal_due(life) or now])


def _is_complete(row: RunState | None, events: Sequence[KnownEvent]) -> bool:
    """Whether the events begin with the run's making and go as far as the ledger."""
    if not events or events[0].type not in ("run_scheduled", "run_held"):
        return False
    return events[-1].version >= row.version if row else events[-1].type in _ENDS


def _is_gated(row: RunState | None, job: Job | None) -> bool:
    """Whether only one run of the job may be leased at a time, as far as is known now."""
    if row is not None and row.overlap:
        return True
    return job is not None and msgspec.json.decode(job.definition).get("overlap", "allow") != "allow"


async def _hindrances(conn: Connection, run_id: UUID, tenant: str, queue: str, since: datetime) -> list[Hindrance]:
    """Pauses of the run's queue and tenant, and the times in which nobody owned its partition."""
    pauses = await list_pauses(conn, tenant, queue=queue, since=since)
    tenures = await list_takeovers(conn, partition_of_run(run_id), since)
    return [*map(_pause, pauses), *_gaps(tenures)]


def _pause(pause: Pause) -> Hindrance:
    by = f"was paused by token {pause.by}"
    if pause.queue is None:
        return Hindrance("tenant_paused", pause.paused_at, pause.resumed_at, f"the tenant {by}")
    return Hindrance("queue_paused", pause.paused_at, pause.resumed_at, f"queue {pause.queue} {by}")


def _gaps(tenures: Sequence[Tenure]) -> Iterator[Hindrance]:
    """The owner before was there when it took over itself, and when it last decided; after that it gave no sign."""
    for before, tenure in zip([None, *tenures], tenures, strict=False):
        sign = tenure.decided_through if before is None else max(before.at, tenure.decided_through)
        sentence = f"its partition had no owner until {tenure.owner} took it over"
        yield Hindrance("owner_taking_over", sign, tenure.at, sentence)


def _answer(
    run_id: UUID,
    row: RunState | None,
    events: Sequence[KnownEvent],
    found: Timeline,
    incomplete: bool,
    now: datetime,
) -> http.RunWhy:
    known = events[-1] if events else row
    assert known is not None
    return http.RunWhy(
        run_id=run_id,
        job_id=known.job_id,
        state=row.state if row else _state(events[-1].type),
        reason=known.reason,
        scheduled_for=row.scheduled_for if row else known.scheduled_for,
        due_at=found.due_at,
        first_leased_at=found.first_leased_at,
        ended_at=found.end and found.end.at,
        lateness_ms=found.lateness_us / 1000 if events else None,
        summary=summary(found, incomplete),
        intervals=[_interval(each, found) for each in found.intervals],
        incomplete=incomplete,
        as_of=now,
    )


def _state(event: str) -> str:
    return _STATES.get(event) or (event.removeprefix("run_") if event in _ENDS else "pending")


def _interval(each: Interval, found: Timeline) -> http.WaitInterval:
    return http.WaitInterval(
        start=each.start,
        end=each.end,
        ms=each.micros / 1000,
        cause=each.cause,
        detail=each.sentence,
        late=found.is_late(each),
    )


def summary(found: Timeline, incomplete: bool) -> str:
    """One sentence: how late, and of what."""
    if not found.intervals and found.due_at is None:
        return "the history has not heard of it yet"
    missing = "; the newest of it is not known yet" if incomplete else ""
    if found.made_up_us:
        missing = (
            f"; due {found.made_up_us / 1e6:.3f} s after its nominal time, to catch up at its queue's rate{missing}"
        )
    if not found.lateness_us:
        return _punctual(found) + missing
    late: dict[str, int] = {}
    for each in filter(found.is_late, found.intervals):
        late[each.cause] = late.get(each.cause, 0) + each.micros
    causes = ", ".join(f"{micros / 1e6:.3f} s {cause.replace('_', ' ')}" for cause, micros in late.items())
    return f"{_first_step(found)} {found.lateness_us / 1e6:.3f} s {_since(found)} it was due: {causes}{missing}"


def _first_step(found: Timeline) -> str:
    """What ended the lateness, if anything has."""
    if found.first_leased_at:
        return "it was leased"
    if found.end is None:
        return "it has waited"
    reason = f" ({found.end.reason})" if found.end.reason else ""
    return f"it was {found.end.type.removeprefix('run_')}{reason}"


def _since(found: Timeline) -> str:
    return "after" if found.first_leased_at or found.end else "since"


def _punctual(found: Timeline) -> str:
    if found.first_leased_at:
        return "it was leased when it was due"
    return "it ended before it was due" if found.end else "it is not due yet"
