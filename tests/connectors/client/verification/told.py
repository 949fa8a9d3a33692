"""Events as a cluster would tell them, for the tests of the rules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost.verification.certificate import Certificate
from fencepost.verification.events import Event, JobEvent, RunEvent
from fencepost.verification.run_ids import scheduled_run_id
from fencepost.verification.verifier import Verifier

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB_ID = "019a3f6e-7c1b-7003-9d0a-3f1f1c6a2b11"
RUN_ID = "run-1"  # of no schedule: it was triggered
EVERY_MINUTE = {"everySeconds": 60}


def at(seconds: float) -> datetime:
    """Seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def run_event(version: int, kind: str, seconds: float, run_id: str = RUN_ID, **more: Any) -> RunEvent:
    event_id = more.pop("event_id", f"{run_id}-{version}")
    return RunEvent(event_id, kind, at(seconds), JOB_ID, run_id, version, queue="mail", **more)


def scheduled(version: int = 1, seconds: float = -5, **more: Any) -> RunEvent:
    return run_event(version, "run_scheduled", seconds, **{"due_at": at(0), **more})


def leased(version: int, seconds: float, token: int, **more: Any) -> RunEvent:
    terms = {"token": token, "worker": "w", "due_at": at(0), "expires_at": at(seconds + 30), "attempt": token}
    return run_event(version, "run_leased", seconds, **{**terms, **more})


def ended(version: int, kind: str, seconds: float, token: int, **more: Any) -> RunEvent:
    return run_event(version, kind, seconds, **{"token": token, "worker": "w", **more})


def expired(version: int, seconds: float, token: int) -> RunEvent:
    """The lease of `leased(version - 1, seconds - 31, token)` has run out."""
    return ended(version, "run_retried", seconds, token, reason="lease expired", due_at=at(seconds + 1))


def job_event(kind: str, version: int, seconds: float, cursor: float | None, **more: Any) -> JobEvent:
    """cursor: seconds after noon of the occurrence that is pending from now on."""
    definition = json.dumps({"schedule": more.pop("schedule", EVERY_MINUTE), "overlap": more.pop("overlap", "allow")})
    pending = None if cursor is None else at(cursor)
    known = None if kind == "job_deleted" else definition
    return JobEvent(f"job-{version}", kind, at(seconds), JOB_ID, version, at(0), pending, definition=known, **more)


def created(**more: Any) -> JobEvent:
    """At noon; its first occurrence is a minute later."""
    return job_event("job_created", 1, 0, 60, **more)


def made(cursor: float, seconds: float | None = None) -> RunEvent:
    """The run of an occurrence, made a minute before it unless told otherwise."""
    run_id = scheduled_run_id(JOB_ID, at(cursor), 3)
    return run_event(
        1,
        "run_scheduled",
        cursor - 60 if seconds is None else seconds,
        run_id,
        due_at=at(cursor),
        scheduled_for=at(cursor),
    )


def range_skipped(version: int, seconds: float, first: float, last: float, count: int) -> JobEvent:
    event = JobEvent(f"job-{version}", "occurrences_skipped", at(seconds), JOB_ID, version, at(first), at(last))
    return replace(event, reason="catch-up latest", count=count)


def judged(events: Iterable[Event], until: float | None = None, **options: Any) -> Verifier:
    """A verifier that has seen these. until: seconds after noon by which what should have happened is looked for."""
    verifier = Verifier(**options)
    for event in events:
        verifier.take(event)
    verifier.finish()
    if until is not None:
        for suspect in verifier.settle(at(until)):
            verifier.explain(suspect, None)
    return verifier


def broken(events: Iterable[Event], until: float | None = None, **options: Any) -> set[str]:
    """The names of the rules that they break."""
    return {violation.rule for violation in judged(events, until, **options).violations}


def certificate_of(verifier: Verifier, *, is_complete: bool = True) -> Certificate:
    return verifier.certificate(
        source="a test",
        tenant="acme",
        since=at(-60),
        until=at(3600),
        through=at(3600),
        is_complete=is_complete,
        unchecked=[],
    )
