"""The job endpoints. Commands go through Kafka like any other; the caller waits a moment for their effect.

Everything that can be told without the partition's owner is checked before the command is sent, so that the caller
learns it at once and by the field's name.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from api.auth import require_queue
from api.command_outcomes import CommandOutcomes
from api.command_producer import CommandProducer
from api.endpoints import Call, Reply
from api.problems import Problem, invalid, invalid_schedule, not_found
from ledger.commands import APPLIED, UNCHANGED, Outcome
from ledger.connection import Pool, session
from ledger.jobs import Job, read_jobs
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
)
from schemas.errors import InvalidSchedule, JobConflict, JobUnknown
from schemas.ids import idempotent_id, new_id
from schemas.schedule import first_fire, parse_schedule, to_json

APPLIED_WITHIN_S = 2.0
KEY_MAX_CHARS = 200
KEY_HEADER = "Idempotency-Key"

C = TypeVar("C", bound=Command)


class Jobs:
    """applied_within_s: how long a caller waits to see the effect before the answer is 202."""

    def __init__(
        self,
        pool: Pool,
        producer: CommandProducer,
        outcomes: CommandOutcomes,
        *,
        applied_within_s: float = APPLIED_WITHIN_S,
    ) -> None:
        self._pool = pool
        self._producer = producer
        self._outcomes = outcomes
        self._applied_within_s = applied_within_s

    async def create(self, call: Call[http.NewJob]) -> Reply:
        """POST /v1/jobs."""
        identity, key, issued_at = call.identity, _idempotency_key(call), datetime.now(UTC)
        require_queue(identity, call.body.queue)
        job_id = idempotent_id(identity.tenant, key) if key else new_id()
        spec = job_spec(call.body, job_id, issued_at)
        if key and (job := await self._find(identity, job_id)):
            return _created(_same_job(job, spec))
        command_id = _command_id(identity, key, "create", job_id)
        command = CreateJob(
            command_id=command_id, tenant=identity.tenant, job_id=job_id, issued_at=issued_at, spec=spec
        )
        if await self._apply(command) is None:
            return _accepted(command)
        job = await self._find(identity, job_id)
        return _created(_same_job(job, spec)) if job else _accepted(command)

    async def pause(self, call: Call[http.NoBody]) -> Reply:
        return await self._change(call, "pause", PauseJob)

    async def resume(self, call: Call[http.NoBody]) -> Reply:
        return await self._change(call, "resume", ResumeJob)

    async def delete(self, call: Call[http.NoBody]) -> Reply:
        return await self._change(call, "delete", DeleteJob)

    async def trigger(self, call: Call[http.Trigger]) -> Reply:
        """POST /v1/jobs/{id}/trigger."""
        job = await self._known(call)
        if job.state == "deleted":
            raise not_found("job")
        payload = None if call.body.payload is UNSET else payload_text(call.body.payload)
        command = TriggerJob(**self._head(call, "trigger", job), payload=payload)
        outcome = await self._apply(command)
        if outcome is None or outcome.detail is None:
            return _accepted(command)
        return Reply(http.JobTriggered(job.job_id, UUID(outcome.detail)))

    async def show(self, call: Call[http.NoBody]) -> Struct:
        """GET /v1/jobs/{id}."""
        return job_view(await self._known(call))

    async def _change(self, call: Call[http.NoBody], verb: str, kind: Callable[..., Command]) -> Reply:
        """Pause, resume or delete, and tell the job's state after it."""
        job = await self._known(call)
        command = kind(**self._head(call, verb, job))
        if await self._apply(command) is None:
            return _accepted(command)
        job = await self._find(call.identity, job.job_id) or job
        return Reply(http.JobChanged(job.job_id, job.state, job.next_fire_at))

    def _head(self, call: Call[Any], verb: str, job: Job) -> dict[str, Any]:
        """The fields that every command has."""
        command_id = _command_id(call.identity, _idempotency_key(call), verb, job.job_id)
        return {
            "command_id": command_id,
            "tenant": job.tenant,
            "job_id": job.job_id,
            "issued_at": datetime.now(UTC),
        }

    async def _apply(self, command: Command) -> Outcome | None:
        """Send the command; its outcome, or None when that is not to be seen in time.

        Raises KafkaUnavailable, or what the owner rejected the command for.
        """
        await self._producer.send(command)
        outcome = await self._outcomes.wait_for(command.command_id, self._applied_within_s)
        if outcome is not None and outcome.outcome not in (APPLIED, UNCHANGED):
            raise _rejection(outcome)
        return outcome

    async def _known(self, call: Call[Any]) -> Job:
        """The job of the path. Raises Problem 404, or 403 for another queue's."""
        job = await self._find(call.identity, call.id("job"))
        if job is None:
            raise not_found("job")
        require_queue(call.identity, job.queue)
        return job

    async def _find(self, identity: Identity, job_id: UUID) -> Job | None:
        async with session(self._pool) as conn:
            job = (await read_jobs(conn, [job_id])).get(job_id)
        return job if job and job.tenant == identity.tenant else None


def job_spec(body: http.NewJob, job_id: UUID, issued_at: datetime) -> JobSpec:
    """The definition, its schedule in canonical form. Raises Problem 422 or InvalidSchedule."""
    try:
        schedule = parse_schedule(body.schedule, job_id=job_id)
        fires = first_fire(schedule, job_id=job_id, created_at=issued_at) is not None
    except InvalidSchedule as error:
        raise invalid_schedule(error) from None
    if not fires:
        raise invalid("schedule", "the schedule never fires; check startAt and endAt")
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return JobSpec(**{**fields, "schedule": to_json(schedule), "payload": payload_text(body.payload)})


def payload_text(payload: Raw) -> str | None:
    """A payload as the ledger keeps it. Raises Problem 422, or UnicodeDecodeError."""
    text = http.json_text(payload)
    if text is not None and (size := len(text.encode())) > PAYLOAD_MAX_BYTES:
        raise invalid("payload", f"payload is {size} bytes, more than {PAYLOAD_MAX_BYTES}")
    return text


def job_view(job: Job) -> http.JobView:
    definition = msgspec.json.decode(job.definition)
    return http.JobView(
        job_id=job.job_id,
        tenant=job.tenant,
        name=definition.get("name"),
        queue=job.queue,
        lane=LANES[job.lane],
        schedule=definition["schedule"],
        payload=http.json_raw(job.payload),
        state=job.state,  # type: ignore[arg-type]  # the table's CHECK has the same three
        version=job.version,
        next_run_at=job.next_fire_at,
        created_at=job.created_at,
        paused_at=job.paused_at,
        max_attempts=job.max_attempts,
        timeout_seconds=definition.get("timeoutSeconds"),
        catch_up=definition.get("catchUp", "latest"),
        overlap=definition.get("overlap", "allow"),
        start_deadline_seconds=definition.get("startDeadlineSeconds"),
    )


def _same_job(job: Job, spec: JobSpec) -> Job:
    """The job, when its definition is the spec's. Raises Problem 409: the key was used for another one."""
    stored = msgspec.convert({**msgspec.json.decode(job.definition), "payload": job.payload}, JobSpec)
    if _comparable(stored) != _comparable(spec):
        raise Problem(409, "the key was used for a job with another definition", field=KEY_HEADER)
    return job


def _comparable(spec: JobSpec) -> tuple[Any, ...]:
    """Equal for definitions that mean the same, however their schedule and payload were written."""
    schedule = to_json(parse_schedule(spec.schedule, job_id=None))
    payload = None if spec.payload is None else msgspec.json.decode(spec.payload)
    rest = msgspec.structs.asdict(spec) | {"schedule": None, "payload": None}
    return schedule, payload, rest


def _rejection(outcome: Outcome) -> Exception:
    """What the owner said, as the error it was."""
    detail = outcome.detail or outcome.outcome
    if outcome.outcome == JobUnknown.code:
        return not_found("job")
    if outcome.outcome == JobConflict.code:
        return Problem(409, detail, field=KEY_HEADER)
    return Problem(422, detail, field=outcome.field)


def _idempotency_key(call: Call[Any]) -> str | None:
    key = call.headers.get(KEY_HEADER.lower().encode())
    if key is None:
        return None
    text = key.decode("latin-1")
    if not 1 <= len(text) <= KEY_MAX_CHARS:
        raise invalid(KEY_HEADER, f"the key must have 1 to {KEY_MAX_CHARS} characters")
    return text


def _command_id(identity: Identity, key: str | None, verb: str, job_id: UUID) -> UUID:
    """Without a key a new one. With a key the same for the same verb of the same job, so that it is applied once."""
    return idempotent_id(identity.tenant, f"{key}\x00{verb} {job_id}") if key else new_id()


def _created(job: Job) -> Reply:
    return Reply(http.JobCreated(job.job_id, job.next_fire_at), 201, [_location(job.job_id)])


def _accepted(command: Command) -> Reply:
    return Reply(http.CommandAccepted(command.job_id, command.command_id), 202, [_location(command.job_id)])


def _location(job_id: UUID) -> tuple[bytes, bytes]:
    return b"location", f"/v1/jobs/{job_id}".encode()
