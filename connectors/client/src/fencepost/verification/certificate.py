"""What a verification says in the end: on how many facts each rule was held, what breaks it, what was not looked at."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from msgspec import Struct

from fencepost.verification.events import RunEvent

Verdict = Literal["holds", "violated", "not judged"]
DUPLICATES_MAX = 0.0001  # of all runs that were started: the promise


class TraceLine(Struct, rename="camel", frozen=True, omit_defaults=True):
    """An event of a run that broke a rule."""

    at: datetime
    version: int
    event: str
    token: int | None = None
    attempt: int | None = None
    worker: str | None = None
    due_at: datetime | None = None
    lease_expires_at: datetime | None = None
    reason: str | None = None


class Violation(Struct, rename="camel", frozen=True):
    """rule: the name of the promise that was broken. subject: a run or a job. trace: the run's events until then."""

    rule: str
    subject: str
    detail: str
    trace: list[TraceLine] = []


class RuleResult(Struct, rename="camel", frozen=True):
    """facts: on how many the rule was held. violations: how many of them break it."""

    rule: str
    promise: str
    facts: int
    violations: int


class Counts(Struct, rename="camel", frozen=True):
    """What was seen. occurrences: that were decided. redelivered: events that came more than once."""

    events: int
    runs: int
    attempts: int
    completed: int
    dead: int
    cancelled: int
    skipped: int
    jobs: int
    occurrences: int
    redelivered: int


class StartedAgain(Struct, rename="camel", frozen=True):
    """Runs whose attempt's lease expired, so that a handler may have run twice. share: of all that were started."""

    runs: int
    started: int
    share: float
    share_max: float
    kept: bool


class Unchecked(Struct, rename="camel", frozen=True):
    """what: was not looked at, or not as a whole. count: how much of it, where that can be told."""

    what: str
    why: str
    count: int | None = None


class Certificate(Struct, rename="camel", frozen=True, kw_only=True):
    """Of what `tenant` (None: everybody's) did from `since` on, before `until`.

    through: how far what should have happened by now was asked for. tzdata: by which occurrences were computed.
    unshown: how many violations are not among `violations`.
    """

    verdict: Verdict
    source: str
    tenant: str | None
    since: datetime
    until: datetime
    through: datetime | None
    tzdata: str
    counts: Counts
    started_again: StartedAgain
    rules: list[RuleResult]
    unchecked: list[Unchecked]
    violations: list[Violation]
    unshown: int = 0


def trace_of(events: Iterable[RunEvent]) -> list[TraceLine]:
    """The timeline of a run."""
    return [
        TraceLine(
            event.at,
            event.version,
            event.type.removeprefix("run_"),
            event.token,
            event.attempt,
            event.worker,
            event.due_at,
            event.expires_at,
            event.reason,
        )
        for event in events
    ]


def started_again(runs: int, started: int) -> StartedAgain:
    """How the runs that may have run twice compare with the promise."""
    share = runs / started if started else 0.0
    return StartedAgain(runs, started, share, DUPLICATES_MAX, share <= DUPLICATES_MAX)
