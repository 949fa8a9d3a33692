"""POST /v1/jobs/{id}/backfill: the occurrences of a range again, beside the schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from uuid import UUID

from api.command_calls import CommandCalls, command_head, idempotency_key
from api.endpoints import Accepted, Call
from api.jobs import Jobs, accepted, json_value, payload_text
from api.problems import invalid
from api.stored_definitions import stored_schedule
from ledger.jobs import Job
from schemas import http_operations as http
from schemas.commands import BACKFILL_MAX_RUNS, BackfillJob
from schemas.http import CommandAccepted
from schemas.ids import run_id_for
from schemas.schedule import fires_between


class Backfills:
    def __init__(self, jobs: Jobs, commands: CommandCalls) -> None:
        self._jobs = jobs
        self._commands = commands

    async def backfill(self, call: Call[http.Backfill]) -> http.Backfilled | Accepted[CommandAccepted]:
        """Run a range's occurrences again, beside the schedule.

        Raises Problem 422 for a range that is empty, reaches into the future or has too many occurrences, and 429 for
        more than the tenant may have now.
        """
        idempotency_key(call)  # one that cannot be is refused, also when there is nothing to run
        body, job = call.body, await self._jobs.known(call, alive=True)
        payload = payload_text(body.payload)
        _check_range(body)
        # A thousand fires take long enough to hold up the leases of others.
        fires = await asyncio.to_thread(_fires, job, body)
        if len(fires) > BACKFILL_MAX_RUNS:
            raise invalid(
                "to", f"from there to here are more than {BACKFILL_MAX_RUNS} occurrences; {_reachable(fires)}"
            )
        if body.dry_run or not fires:
            return _answer(job, body, [http.BackfilledRun(fire) for fire in fires])
        command = BackfillJob(
            **command_head(call, "backfill", job.job_id), after=body.after, through=body.through, payload=payload
        )
        content = [body.after.astimezone(UTC), body.through.astimezone(UTC), json_value(payload)]
        await self._commands.check_key(call, command, content)
        if await self._commands.apply(command) is None:
            return accepted(command)
        return _answer(job, body, [http.BackfilledRun(fire, _run_id(job, fire, command.command_id)) for fire in fires])


def _check_range(body: http.Backfill) -> None:
    if body.through <= body.after:
        raise invalid("to", "must be later than from")
    if body.through > datetime.now(UTC):
        raise invalid("to", "must not lie in the future: what is still to come runs by itself")


def _fires(job: Job, body: http.Backfill) -> list[datetime]:
    """The occurrences of the range, or one more than are allowed."""
    schedule = stored_schedule(job.job_id, job.definition)
    fires = fires_between(schedule, body.after, body.through, job_id=job.job_id, created_at=job.created_at)
    return list(islice(fires, BACKFILL_MAX_RUNS + 1))


def _reachable(fires: Sequence[datetime]) -> str:
    last = fires[BACKFILL_MAX_RUNS - 1].isoformat().replace("+00:00", "Z")
    return f"go to {last} first, and on from there"


def _run_id(job: Job, fire: datetime, command_id: UUID) -> UUID:
    """As the owner makes it: a backfill's own, beside the run that the schedule made."""
    return run_id_for(job.job_id, fire, job.partition, nonce=command_id.bytes)


def _answer(job: Job, body: http.Backfill, runs: list[http.BackfilledRun]) -> http.Backfilled:
    return http.Backfilled(job_id=job.job_id, dry_run=body.dry_run, count=len(runs), runs=runs)
