"""Commands of HTTP callers: named by an idempotency key or anew, sent by Kafka, their effect awaited for a moment."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from api.budgets import Budget
from api.command_outcomes import CommandOutcomes
from api.command_producer import CommandProducer
from api.endpoints import Call
from api.problems import Problem, invalid, not_found
from ledger.commands import APPLIED, UNCHANGED, Outcome, forget_outcome, note_keyed_command, read_outcomes
from ledger.connection import session
from ledger.shards import MOVES_WITHIN_S, Shards
from ledger.tokens import Identity
from schemas.commands import BackfillJob, Command
from schemas.errors import JobConflict, JobUnknown, NotOnThisShard, TooManyPending
from schemas.ids import idempotent_id, new_id

APPLIED_WITHIN_S = 2.0
LOOK_FOR_OUTCOME_S = 0.5
KEY_MAX_CHARS = 200
KEY_HEADER = "Idempotency-Key"
SENT_TOGETHER = 250
FULL_FOR_S = 2.0  # owners count what is pending that often


class CommandCalls:
    """outcomes: of each shard. applied_within_s: how long a caller waits to see the effect before the answer is 202.

    budget: of calls that command; while they wait for Kafka and the owner they are not in hand.
    """

    def __init__(
        self,
        shards: Shards,
        producer: CommandProducer,
        outcomes: Mapping[int, CommandOutcomes],
        applied_within_s: float,
        budget: Budget,
    ) -> None:
        self._shards = shards
        self._producer = producer
        self._outcomes = outcomes
        self._applied_within_s = applied_within_s
        self._budget = budget
        self._full_until: dict[str, float] = {}

    async def apply(self, command: Command) -> Outcome | None:
        """Send the command; its outcome, or None when that is not to be seen in time.

        Raises KafkaUnavailable, or what the owner rejected the command for; of a tenant that has too many runs, Problem
        429, the same command may then come again.
        """
        with self._budget.aside():
            await self._producer.send(command)
            outcome = await self._outcome(command)
        if outcome is not None and outcome.outcome == TooManyPending.code:
            if not isinstance(command, BackfillJob):  # which may want many, while there is room for one
                self._full_until[command.tenant] = time.monotonic() + FULL_FOR_S
            async with session(self._shards.of_job(command.job_id)) as conn:
                await forget_outcome(conn, outcome)
        if outcome is not None and outcome.outcome not in (APPLIED, UNCHANGED):
            raise _rejection(outcome)
        return outcome

    def require_room(self, tenant: str) -> None:
        """Raises Problem 429 when a creation of the tenant's was rejected just before, since it has too many runs."""
        if (left_s := self._full_until.get(tenant, 0.0) - time.monotonic()) > 0:
            raise _too_many_pending(left_s)
        self._full_until.pop(tenant, None)

    async def apply_all(self, commands: Sequence[Command]) -> list[Outcome | None]:
        """Send many commands; their outcomes in the same order, rejections among them. Raises KafkaUnavailable.

        Not all at once: a thousand of them must not hold up the leases of others.
        """
        with self._budget.aside():
            for start in range(0, len(commands), SENT_TOGETHER):
                await asyncio.gather(*map(self._producer.send, commands[start : start + SENT_TOGETHER]))
            return list(await asyncio.gather(*map(self._outcome, commands)))

    async def was_applied(self, command_id: UUID, run_id: UUID) -> bool:
        """Whether a command of this id about the run, from an earlier call with the same key, has had its effect."""
        async with session(self._shards.of_run(run_id)) as conn:
            outcome = (await read_outcomes(conn, [command_id])).get(command_id)
        return outcome is not None and outcome.outcome in (APPLIED, UNCHANGED)

    async def check_key(self, call: Call[Any], command: Command, content: Any) -> None:
        """Raises Problem 409 when the call's key came with another content before.

        content: what the caller asks for, as JSON-like values, equal for bodies that mean the same.
        """
        if idempotency_key(call) is None:
            return
        digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).digest()
        if not await self._note_key(command, digest):
            raise Problem(409, "the key was used for this with another body", field=KEY_HEADER)

    async def _note_key(self, command: Command, digest: bytes) -> bool:
        """False when the key came with another content before. Waits for a partition that is just moving."""
        partition, until = self._shards.partition_of_job(command.job_id), time.monotonic() + MOVES_WITHIN_S
        tries = count()
        while True:
            try:
                return await note_keyed_command(self._shards.of(partition), partition, command.command_id, digest)
            except NotOnThisShard:
                if time.monotonic() >= until:
                    raise
                await self._shards.look_for([partition], next(tries))

    async def _outcome(self, command: Command) -> Outcome | None:
        """Where there are several shards, the partition may move while its outcome is waited for."""
        partition, until = self._shards.partition_of_job(command.job_id), time.monotonic() + self._applied_within_s
        while True:
            is_alone, left_s = len(self._shards.pools) == 1, max(0.0, until - time.monotonic())
            wait_s = left_s if is_alone else min(left_s, LOOK_FOR_OUTCOME_S)
            shard = self._shards.number_of(partition)
            outcome = await self._outcomes[shard].wait_for(command.command_id, wait_s)
            if outcome is not None or wait_s == left_s:
                return outcome


def command_head(call: Call[Any], verb: str, job_id: UUID, *, run_id: UUID | None = None) -> dict[str, Any]:
    """The fields that every command has. run_id: of the run that it is about, when it is about one."""
    return {
        "command_id": command_id_of(call.identity, idempotency_key(call), verb, run_id or job_id),
        "tenant": call.identity.tenant,
        "job_id": job_id,
        "issued_at": datetime.now(UTC),
        "issued_by": call.identity.token_id,
    }


def command_id_of(identity: Identity, key: str | None, verb: str, about: UUID) -> UUID:
    """Without a key a new one. With a key the same for the same verb of the same job or run, so that it is applied
    once."""
    return idempotent_id(identity.tenant, f"{key}\x00{verb} {about}") if key else new_id()


def idempotency_key(call: Call[Any]) -> str | None:
    """Raises Problem 422 for one that cannot be."""
    key = call.headers.get(KEY_HEADER.lower().encode())
    if key is None:
        return None
    text = key.decode("latin-1")
    if not 1 <= len(text) <= KEY_MAX_CHARS:
        raise invalid(KEY_HEADER, f"the key must have 1 to {KEY_MAX_CHARS} characters")
    return text


def _rejection(outcome: Outcome) -> Problem:
    """What the owner said, as the error it was."""
    detail = outcome.detail or outcome.outcome
    if outcome.outcome == JobUnknown.code:
        return not_found("job")
    if outcome.outcome == TooManyPending.code:
        return Problem(429, detail, retry_after_s=FULL_FOR_S)
    if outcome.outcome == JobConflict.code:
        return Problem(409, detail, field=outcome.field if outcome.field == "ifVersion" else KEY_HEADER)
    return Problem(422, detail, field=outcome.field)


def _too_many_pending(retry_after_s: float) -> Problem:
    detail = "the tenant has as many runs that wait or are leased as it may have (maxPendingRuns)"
    return Problem(429, detail, retry_after_s=retry_after_s)
