"""The five things a worker tells of its leases: what each asks of the ledger, and how its answer reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from msgspec import Raw, Struct, UnsetType

from api.ended_attempts import EndedAttempts
from api.problems import invalid
from ledger.completions import Completed, Completion, Ended, Failure, complete_runs, fail_runs
from ledger.connection import Connection
from ledger.leases import (
    Beat,
    ExtendedLease,
    HeldLease,
    Snooze,
    Snoozed,
    extend_leases,
    release_runs,
    snooze_runs,
)
from ledger.tokens import Identity
from schemas import http
from schemas.json_depth import MAX_DEPTH, is_too_deep


class Caller(NamedTuple):
    """Whose runs a call may touch, as the ledger wants it: queues joined by commas, None for all of the tenant."""

    tenant: str
    queues: str | None


def caller_of(identity: Identity) -> Caller:
    return Caller(identity.tenant, None if identity.queues is None else ",".join(identity.queues))


class Ask(Protocol):
    """What the ledger is asked about one run."""

    @property
    def run_id(self) -> UUID: ...


class Came(Protocol):
    """What came of one run. permit: that its lease had, if it is over."""

    @property
    def run_id(self) -> UUID: ...

    @property
    def permit(self) -> int | None: ...


B = TypeVar("B", contravariant=True)
A = TypeVar("A", bound=Ask)
R = TypeVar("R", bound=Came)


class Kind(Protocol, Generic[B, A, R]):
    """One kind of outcome. B: the body of its single form; A: the ledger's ask; R: what comes of it."""

    name: str

    def ask(self, run_id: UUID, body: B, caller: Caller) -> A:
        """Raises Problem 422 naming the body's field."""

    async def write(self, conn: Connection, asks: Sequence[A]) -> dict[UUID, R]:
        """In an API transaction; a run missing from the answer has no such lease."""

    async def explain_miss(self, ends: EndedAttempts, identity: Identity, ask: A, until: float, /) -> R:
        """What came of it earlier. Raises Problem: 409 for a lost lease, 404, 403 or 503."""

    def single(self, came: R, /) -> Struct:
        """The answer of the single form. Its return type and docstring tell callers of that: see api/openapi.py."""

    def item(self, run_id: UUID, came: R, /) -> http.RunAnswer:
        """The same as an item of the batch form."""


class Heartbeat:
    name = "heartbeat"

    def ask(self, run_id: UUID, body: http.Beat, caller: Caller) -> Beat:
        progress = None if body.progress is None else _storable(body.progress)
        return Beat(run_id, body.lease_token, body.visibility_seconds, *caller, progress)

    async def write(self, conn: Connection, asks: Sequence[Beat]) -> dict[UUID, ExtendedLease]:
        return {lease.run_id: lease for lease in await extend_leases(conn, asks)}

    async def explain_miss(self, ends: EndedAttempts, identity: Identity, ask: Beat, _: float) -> ExtendedLease:
        raise await ends.why_lost(identity, ask.run_id, ask.lease_token)

    def single(self, came: ExtendedLease) -> http.Extended:
        """Extend a lease, and learn whether the run is to be cancelled."""
        return http.Extended(came.lease_expires_at, came.lease_s, came.cancel)

    def item(self, run_id: UUID, came: ExtendedLease) -> http.RunAnswer:
        return http.RunAnswer(
            run_id=run_id,
            status=200,
            lease_expires_at=came.lease_expires_at,
            lease_seconds=came.lease_s,
            cancel=came.cancel,
        )


class Complete:
    name = "complete"

    def ask(self, run_id: UUID, body: http.Complete, caller: Caller) -> Completion:
        return Completion(run_id, body.lease_token, result_text(body.result), *caller)

    async def write(self, conn: Connection, asks: Sequence[Completion]) -> dict[UUID, Completed]:
        return {completed.run_id: completed for completed in await complete_runs(conn, asks)}

    async def explain_miss(self, ends: EndedAttempts, identity: Identity, ask: Completion, until: float) -> Completed:
        return Completed(await ends.completed(identity, ask, until))

    def single(self, _: Completed) -> http.Done:
        """Say that a run is completed."""
        return http.Done()

    def item(self, run_id: UUID, _: Completed) -> http.RunAnswer:
        return http.RunAnswer(run_id=run_id, status=200)


class Fail:
    name = "fail"

    def ask(self, run_id: UUID, body: http.Fail, caller: Caller) -> Failure:
        reason = _storable(body.error)
        return Failure(run_id, body.lease_token, reason, body.permanent, body.retry_after_seconds, *caller)

    async def write(self, conn: Connection, asks: Sequence[Failure]) -> dict[UUID, Ended]:
        return {ended.run_id: ended for ended in await fail_runs(conn, asks)}

    async def explain_miss(self, ends: EndedAttempts, identity: Identity, ask: Failure, until: float) -> Ended:
        return await ends.failed(identity, ask, until)

    def single(self, came: Ended) -> http.Failed:
        """Say that a run's attempt has failed: it is retried, or dead."""
        return http.Failed(came.outcome, came.due_at)

    def item(self, run_id: UUID, came: Ended) -> http.RunAnswer:
        return http.RunAnswer(run_id=run_id, status=200, outcome=came.outcome, due_at=came.due_at)


class Release:
    name = "release"

    def ask(self, run_id: UUID, body: http.Release, caller: Caller) -> HeldLease:
        return HeldLease(run_id, body.lease_token, *caller)

    async def write(self, conn: Connection, asks: Sequence[HeldLease]) -> dict[UUID, Snoozed]:
        return {released.run_id: released for released in await release_runs(conn, asks)}

    async def explain_miss(self, ends: EndedAttempts, identity: Identity, ask: HeldLease, _: float) -> Snoozed:
        raise await ends.why_lost(identity, ask.run_id, ask.lease_token)

    def single(self, _: Snoozed) -> http.Done:
        """Give a run back at once; the attempt is not charged."""
        return http.Done()

    def item(self, run_id: UUID, _: Snoozed) -> http.RunAnswer:
        return http.RunAnswer(run_id=run_id, status=200)


class Snoozing:
    name = "snooze"

    def ask(self, run_id: UUID, body: http.Snooze, caller: Caller) -> Snooze:
        return Snooze(run_id, body.lease_token, body.delay_seconds, *caller)

    async def write(self, conn: Connection, asks: Sequence[Snooze]) -> dict[UUID, Snoozed]:
        return {snoozed.run_id: snoozed for snoozed in await snooze_runs(conn, asks)}

    async def explain_miss(self, ends: EndedAttempts, identity: Identity, ask: Snooze, _: float) -> Snoozed:
        raise await ends.why_lost(identity, ask.run_id, ask.lease_token)

    def single(self, came: Snoozed) -> http.Snoozed:
        """Give a run back until later; the attempt is not charged."""
        return http.Snoozed(_snoozed_as(came), came.due_at)

    def item(self, run_id: UUID, came: Snoozed) -> http.RunAnswer:
        return http.RunAnswer(run_id=run_id, status=200, outcome=_snoozed_as(came), due_at=came.due_at)


_SNOOZED_AS: dict[str, http.SnoozedAs] = {"released": "snoozed", "held": "held", "cancelled": "cancelled"}


def _snoozed_as(came: Snoozed) -> http.SnoozedAs:
    return _SNOOZED_AS[came.outcome]


def _storable(text: str) -> str:
    return text.replace("\x00", "\ufffd")  # Postgres keeps no NUL


def result_text(result: Raw | UnsetType) -> str | None:
    """A result as the ledger keeps it. Raises Problem 422, or UnicodeDecodeError."""
    text = http.json_text(result)
    if text is not None and len(text.encode()) > http.RESULT_MAX_BYTES:
        raise invalid("result", f"the result is larger than {http.RESULT_MAX_BYTES} bytes")
    if text is not None and is_too_deep(text):
        raise invalid("result", f"the result is nested deeper than {MAX_DEPTH} levels")
    return text
