"""A job's occurrences: each is decided exactly once, in order, and none is left out.

A decision is the making of an occurrence's run, or a range of occurrences that were skipped together. By the job's
schedule, computed anew here, each must begin with the occurrence after the one that was decided before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule import Cron, Every, next_fire, parse_schedule
from fencepost.verification.events import RANGE_SKIPPED, JobEvent, RunEvent, instant_text

_TICK = timedelta(microseconds=1)
_WALKED = 10_000  # occurrences of a range, or missing ones, that are looked at one by one
_DEFINING = frozenset({"job_created", "job_updated"})


class Decision(NamedTuple):
    """Of the occurrences from first to last, by one run or one range. told: how many a range says that they are."""

    first: datetime
    last: datetime
    told: int | None
    by: str


class Finding(NamedTuple):
    """Of a decision. decided: how many occurrences. is_checked: whether the schedule is known. wrong: what is wrong."""

    decided: int
    is_checked: bool
    wrong: str | None = None


class Occurrences:
    """Of one job. What one transaction has told of it is looked at together: in it the order means nothing.

    through: the occurrence that was decided last. overlap: the job's rule. unreadable: why its schedule cannot be
    computed here, or None. recurs: whether it fires more than once; None while its definition is not known.
    is_whole: whether its creation was seen, so that all of its runs were.
    """

    __slots__ = (
        "_began_with", "_created_at", "_ends_by", "_may_come_again", "_schedule", "_told", "_told_at", "created",
        "is_deleted", "is_paused", "is_stalled", "is_whole", "job_id", "overlap", "recurs", "through", "unreadable",
    )  # fmt: skip

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.overlap = "allow"
        self.recurs: bool | None = None
        self.unreadable: str | None = None
        self.is_paused = self.is_deleted = self.is_stalled = self.is_whole = False
        self.through: datetime | None = None
        self.created: JobEvent | None = None  # until its first run was made
        self._schedule: Cron | Every | None = None
        self._created_at: datetime | None = None
        self._began_with: datetime | None = None  # what was pending, at the latest, when we began to look
        self._ends_by: datetime | None = None
        self._may_come_again = False
        self._told: list[JobEvent | Decision] = []
        self._told_at: datetime | None = None

    # --- what is told ---

    def begin(self, defined: JobEvent, since: datetime, *, is_paused: bool) -> None:
        """The job as it was at `since`: `defined` is its newest event with a definition, before that."""
        self._define(defined)
        self.is_whole = self.is_whole or defined.type == "job_created"
        self.through, self.created, self.is_paused, self._may_come_again = None, None, is_paused, False
        if self._schedule is not None and defined.last is not None:
            pending = defined.last if defined.last > since else self._next(since)
            self._began_with = pending
            self._ends_by = pending and self._next(pending)

    def tell(self, event: JobEvent) -> Iterator[Finding]:
        """The job has changed, or skipped a range. Its overlap is the new one at once: leases do not wait for more."""
        yield from self._new_transaction(event.at)
        self._told.append(event)
        self.is_whole = self.is_whole or event.type == "job_created"
        if event.definition is not None:
            self.overlap = _overlap(event)

    def tell_made(self, run: RunEvent, nominal: datetime) -> Iterator[Finding]:
        """The run of an occurrence was made."""
        yield from self._new_transaction(run.at)
        self._told.append(Decision(nominal, nominal, None, f"run {run.run_id}"))

    def _new_transaction(self, at: datetime) -> Iterator[Finding]:
        if at != self._told_at:
            yield from self.look()
            self._told_at = at

    # --- the judgement ---

    def look(self) -> Iterator[Finding]:
        """Judge what the last transaction told; nothing more comes of it."""
        told, self._told = self._told, []
        changes = [each for each in told if isinstance(each, JobEvent) and each.type != RANGE_SKIPPED]
        for event in changes:
            self._change(event)
        # Of several definitions in one transaction nobody can tell which of its runs was made by which.
        is_clear = sum(event.type in _DEFINING for event in changes) < 2
        for decision in sorted(_decisions(told), key=lambda each: (each.first, each.last)):
            yield self._decide(decision, is_clear)

    def look_before(self, at: datetime) -> Iterator[Finding]:
        """The same, if the transaction is older than `at`."""
        if self._told_at is not None and self._told_at < at:
            yield from self.look()

    def undecided_since(self, until: datetime, patience: timedelta) -> datetime | None:
        """The occurrence that has come, `patience` before `until`, without the next one's decision; None: all is well.

        The next one is decided when an occurrence comes, so that its run is there when it is due.
        """
        last = self.through or self._began_with
        if self._schedule is None or last is None or self.is_paused or self.is_deleted or self._told:
            return None
        return last if last + patience < until and self._next(last) is not None else None

    def following(self, occurrence: datetime) -> datetime | None:
        """The occurrence after it."""
        return self._next(occurrence)

    def _change(self, event: JobEvent) -> None:
        if event.type in _DEFINING:
            self._define(event)
            # From here on its occurrences are those of the new definition, and `last` is the first of them. An edit may
            # have left that one's run as it was.
            self.through, self._began_with, self._ends_by = event.last, None, None
            self._may_come_again = True
            if event.type == "job_created":
                self.is_deleted = self.is_paused = False
                self.created = event if event.last is not None else None
        elif event.type == "job_deleted":
            self.is_deleted, self.created = True, None
        elif event.type in ("job_paused", "job_resumed"):
            self.is_paused = event.type == "job_paused"
            if self.recurs is None:
                self._define(event)

    def _define(self, event: JobEvent) -> None:
        self._created_at, self.overlap = event.first, _overlap(event)
        self._schedule, self.unreadable = None, None
        try:
            schedule = parse_schedule(_definition(event).get("schedule", {}), job_id=self.job_id)
        except InvalidSchedule as error:
            self.recurs, self.unreadable = True, str(error)
            return
        self._schedule = schedule if isinstance(schedule, Cron | Every) else None
        self.recurs = self._schedule is not None

    def _decide(self, decision: Decision, is_clear: bool) -> Finding:
        self.created = None
        self.is_stalled = False
        count = decision.told or 1
        if not is_clear:
            self._may_come_again = False
            return Finding(count, False)
        wrong = self._wrong(decision) if self._schedule is not None else None
        self._may_come_again = False
        self.through = max(decision.last, self.through or decision.last)
        return Finding(count, self.recurs is not None and self.unreadable is None, wrong)

    def _wrong(self, decision: Decision) -> str | None:
        if self.through is None:  # the first that is seen of the job
            late = self._ends_by is not None and decision.first > self._ends_by
            return self._gap(self._ends_by, decision) if late and self._ends_by else self._miscounted(decision)
        if decision.first == self.through and self._may_come_again:
            return self._miscounted(decision)
        if decision.first <= self.through:
            return f"{_text(decision)} was decided again by {decision.by}; all up to {instant_text(self.through)} was"
        wanted = self._next(self.through)
        if wanted == decision.first:
            return self._miscounted(decision)
        if wanted is None or wanted > decision.first:
            return f"{_text(decision)} is no occurrence of the schedule; after {instant_text(self.through)} comes " + (
                instant_text(wanted) if wanted else "none"
            )
        return self._gap(wanted, decision)

    def _gap(self, wanted: datetime, decision: Decision) -> str:
        count = self._count(wanted, decision.first - _TICK)
        many = f"{count} occurrences" if count is not None else f"more than {_WALKED} occurrences"
        return f"{many} from {instant_text(wanted)} on have no decision: the next is of {_text(decision)}"

    def _miscounted(self, decision: Decision) -> str | None:
        if decision.told is None:
            return None
        count = self._count(decision.first, decision.last)
        if count is None or count == decision.told:
            return None
        return f"{_text(decision)} is told to be {decision.told} occurrences, and has {count}"

    def _count(self, first: datetime, last: datetime) -> int | None:
        """How many occurrences there are from first to last; None: too many to look at."""
        fire, count = self._next(first - _TICK), 0
        while fire is not None and fire <= last:
            count += 1
            if count > _WALKED:
                return None
            fire = self._next(fire)
        return count

    def _next(self, after: datetime) -> datetime | None:
        assert self._schedule is not None
        return next_fire(self._schedule, after, job_id=self.job_id, created_at=self._created_at or after)


def _definition(event: JobEvent) -> dict[str, Any]:
    definition: dict[str, Any] = msgspec.json.decode(event.definition or "{}")
    return definition


def _overlap(event: JobEvent) -> str:
    return str(_definition(event).get("overlap", "allow"))


def _decisions(told: list[JobEvent | Decision]) -> Iterator[Decision]:
    for each in told:
        if isinstance(each, Decision):
            yield each
        elif each.type == RANGE_SKIPPED and each.first is not None and each.last is not None:
            yield Decision(each.first, each.last, each.count, f"the range skipped for {each.reason!r}")


def _text(decision: Decision) -> str:
    if decision.first == decision.last:
        return instant_text(decision.first)
    return f"{instant_text(decision.first)} to {instant_text(decision.last)}"
