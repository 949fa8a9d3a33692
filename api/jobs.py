"""The job endpoints. Commands go through Kafka like any other; the caller waits a moment for their effect.

Everything that can be told without the partition's owner is checked before the command is sent, so that the caller
learns it at once and by the field's name.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw, UnsetType

from api.auth import require_queue
from api.command_calls import KEY_HEADER, CommandCalls, command_head, command_id_of, idempotency_key
from api.endpoints import Accepted, Call, Created
from api.problems import Problem, invalid, invalid_schedule, not_found
from api.stored_definitions import stored_spec
from ledger.connection import session
from ledger.jobs import Job, read_jobs
from ledger.shards import Shards
from ledger.tokens import Identity
from schemas import http
from schemas.commands import (
    LANES,
    PAYLOAD_MAX_BYTES,
    Command,
    CreateJob,
    DeleteJob,
    JobSpec,
    PauseJob,
    ResumeJob,
    TriggerJob,
    UpdateJob,
)
from schemas.errors import InvalidSchedule
from schemas.ids import idempotent_id, new_id
from schemas.json_depth import MAX_DEPTH, is_too_deep
from schemas.schedule import first_fire, parse_schedule, to_json

_SPEC_FIELDS = frozenset(JobSpec.__struct_fields__)

Changed = http.JobChanged | Accepted[http.CommandAccepted]


class Jobs:
    def __init__(self, shards: Shards, commands: CommandCalls) -> None:
        self._shards = shards
        self._commands = commands

    async def create(self, call: Call[http.NewJob]) -> Created[http.JobCreated] | Accepted[http.CommandAccepted]:
        """Make a job."""
        identity, key, issued_at = call.identity, idempotency_key(call), datetime.now(UTC)
        require_queue(identity, call.body.queue)
        job_id = idempotent_id(identity.tenant, key) if key else new_id()
        spec = job_spec(call.body, job_id, new_at=issued_at)
        if key and (job := await self._find(identity, job_id)):
            return _created(_same_job(job, spec))
        self._commands.require_room(identity.tenant)
        command_id = command_id_of(identity, key, "create", job_id)
        command = CreateJob(
            command_id=command_id,
            tenant=identity.tenant,
            job_id=job_id,
            issued_at=issued_at,
            issued_by=identity.token_id,
            spec=spec,
        )
        if await self._commands.apply(command) is None:
            return accepted(command)
        job = await self._find(identity, job_id)
        return _created(_same_job(job, spec)) if job else accepted(command)

    async def update(self, call: Call[http.JobUpdate]) -> Changed:
        """Replace a job's whole definition; what is left out gets its default again."""
        job = await self.known(call, alive=True)
        require_queue(call.identity, call.body.queue)
        head, effective_from = command_head(call, "update", job.job_id), call.body.effective_from
        spec = job_spec(call.body, job.job_id)
        command = UpdateJob(**head, spec=spec, effective_from=effective_from, if_version=call.body.if_version)
        starts = effective_from and effective_from.astimezone(UTC)
        await self._commands.check_key(call, command, [*_comparable(spec), starts])
        return await self._changed(call, job, command)

    async def pause(self, call: Call[http.NoBody]) -> Changed:
        """Let a job fire no more until it is resumed."""
        return await self._change(call, "pause", PauseJob)

    async def resume(self, call: Call[http.NoBody]) -> Changed:
        """Let a paused job fire again."""
        return await self._change(call, "resume", ResumeJob)

    async def delete(self, call: Call[http.JobDeletion]) -> Changed:
        """End a job for good; its pending runs are cancelled."""
        job = await self.known(call)
        command = DeleteJob(**command_head(call, "delete", job.job_id), if_version=call.body.if_version)
        return await self._changed(call, job, command)

    async def trigger(self, call: Call[http.Trigger]) -> http.JobTriggered | Accepted[http.CommandAccepted]:
        """Run a job now, beside its schedule.

        Raises Problem 429 while the tenant has as many runs as it may.
        """
        job = await self.known(call, alive=True)
        payload = payload_text(call.body.payload)
        command = TriggerJob(**command_head(call, "trigger", job.job_id), payload=payload)
        await self._commands.check_key(call, command, json_value(payload))
        outcome = await self._commands.apply(command)
        if outcome is None or outcome.detail is None:
            return accepted(command)
        return http.JobTriggered(job.job_id, UUID(outcome.detail))

    async def show(self, call: Call[http.NoBody]) -> http.JobView:
        """Show a job."""
        return job_view(await self.known(call))

    async def _change(self, call: Call[http.NoBody], verb: str, kind: Callable[..., Command]) -> Changed:
        """Pause or resume, and tell the job's state after it."""
        job = await self.known(call)
        return await self._changed(call, job, kind(**command_head(call, verb, job.job_id)))

    async def _changed(self, call: Call[Any], job: Job, command: Command) -> Changed:
        if await self._commands.apply(command) is None:
            return accepted(command)
        job = await self._find(call.identity, job.job_id) or job
        return http.JobChanged(job.job_id, job.state, job.next_fire_at)

    async def known(self, call: Call[Any], *, alive: bool = False) -> Job:
        """The job of the path. alive: not a deleted one. Raises Problem 404, or 403 for another queue's."""
        job = await self._find(call.identity, call.id("job"))
        if job is None or (alive and job.state == "deleted"):
            raise not_found("job")
        require_queue(call.identity, job.queue)
        return job

    async def _find(self, identity: Identity, job_id: UUID) -> Job | None:
        async with session(self._shards.of_job(job_id)) as conn:
            job = (await read_jobs(conn, [job_id])).get(job_id)
        return job if job and job.tenant == identity.tenant else None


def job_spec(body: http.NewJob, job_id: UUID, *, new_at: datetime | None = None) -> JobSpec:
    """The definition, its schedule in canonical form. Raises Problem 422.

    new_at: when the job is created; whether an edit's schedule still fires depends on the job, and its owner tells.
    """
    try:
        schedule = parse_schedule(body.schedule, job_id=job_id)
        fires = new_at is None or first_fire(schedule, job_id=job_id, created_at=new_at) is not None
    except InvalidSchedule as error:
        raise invalid_schedule(error) from None
    if not fires:
        raise invalid("schedule", "the schedule never fires; check startAt and endAt")
    fields = {name: getattr(body, name) for name in _SPEC_FIELDS}
    return JobSpec(**{**fields, "schedule": to_json(schedule), "payload": payload_text(body.payload)})


def payload_text(payload: Raw | UnsetType) -> str | None:
    """A payload as the ledger keeps it. Raises Problem 422, or UnicodeDecodeError."""
    text = http.json_text(payload)
    if text is not None and (size := len(text.encode())) > PAYLOAD_MAX_BYTES:
        raise invalid("payload", f"payload is {size} bytes, more than {PAYLOAD_MAX_BYTES}")
    if text is not None and is_too_deep(text):
        raise invalid("payload", f"payload is nested deeper than {MAX_DEPTH} levels")
    return text


def json_value(text: str | None) -> Any:
    """A payload as a value, equal for texts that mean the same."""
    return None if text is None else msgspec.json.decode(text)


def job_view(job: Job) -> http.JobView:
    """Raises Problem 409 for a definition that this server cannot read."""
    spec = stored_spec(job.job_id, job.definition)
    return http.JobView(
        job_id=job.job_id,
        tenant=job.tenant,
        name=spec.name,
        queue=job.queue,
        lane=LANES[job.lane],
        schedule=spec.schedule,
        payload=http.json_raw(job.payload),
        state=job.state,  # type: ignore[arg-type]  # the table's CHECK has the same three
        version=job.version,
        next_run_at=job.next_fire_at,
        created_at=job.created_at,
        paused_at=job.paused_at,
        max_attempts=job.max_attempts,
        timeout_seconds=spec.timeout_seconds,
        catch_up=spec.catch_up,
        overlap=spec.overlap,
        start_deadline_seconds=spec.start_deadline_seconds,
        retry_backoff=spec.retry_backoff,
        retry_base_seconds=spec.retry_base_seconds,
        retry_max_seconds=spec.retry_max_seconds,
        catch_up_limit=spec.catch_up_limit,
        declared_as=spec.declared_as,
        concurrency_key=spec.concurrency_key,
    )


def _same_job(job: Job, spec: JobSpec) -> Job:
    """The job, when its definition is the spec's. Raises Problem 409: the key was used for another one."""
    try:
        stored = _comparable(msgspec.convert({**msgspec.json.decode(job.definition), "payload": job.payload}, JobSpec))
    except (msgspec.ValidationError, InvalidSchedule):  # a newer server's: no body that this one takes means the same
        stored = None
    if stored != _comparable(spec):
        raise Problem(409, "the key was used for a job with another definition", field=KEY_HEADER)
    return job


def _comparable(spec: JobSpec) -> tuple[Any, ...]:
    """Equal for definitions that mean the same, however their schedule and payload were written."""
    schedule = to_json(parse_schedule(spec.schedule, job_id=None))
    rest = msgspec.structs.asdict(spec) | {"schedule": None, "payload": None}
    return schedule, json_value(spec.payload), rest


def _created(job: Job) -> Created[http.JobCreated]:
    return Created(http.JobCreated(job.job_id, job.next_fire_at), headers=[_location(job.job_id)])


def accepted(command: Command) -> Accepted[http.CommandAccepted]:
    """202: Kafka has it."""
    return Accepted(http.CommandAccepted(command.job_id, command.command_id), headers=[_location(command.job_id)])


def _location(job_id: UUID) -> tuple[bytes, bytes]:
    return b"location", f"/v1/jobs/{job_id}".encode()
