"""Why a run waited: its life cut into intervals, each with its cause, that leave no gap and sum up to its lateness.

Pure. The line begins when the run was due and ends when the run ended, or now. Until the first lease everything on it
is lateness; after it the line tells of attempts, and of the waits between them. The line of a run that was made up for
at its queue's rate begins at its nominal time; its lateness, as any, when it was due. Source: ARCHITECTURE, Policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from schemas.errors import InvariantBroken
from schemas.events import GONE_EVENTS, SPREAD, WAITING_EVENTS

Cause = Literal[
    "not_due",  # it waits for its time
    "not_decided",  # it was due, but its owner had not made the run yet
    "catching_up",  # it is made up for, and waits for its turn at its queue's rate
    "job_paused",
    "tenant_paused",
    "queue_paused",
    "queue_full",  # as many runs of its queue were live as may be
    "key_full",  # as many with its concurrency key were
    "overlap",  # another run of its job was leased
    "owner_taking_over",  # its partition had no owner who could hint it
    "lease_quota",  # its tenant had leased all it may, so who asked for more had to wait
    "no_worker_asked",  # the rest: it was there to be leased
    "running",
    "retry_delay",
    "snoozed",
    "ended",  # between its end and a replay
]
# Where several hold at once, the first one counts. A paused job comes before them all: its runs are put aside.
PRIORITY: tuple[Cause, ...] = (
    "tenant_paused",
    "queue_paused",
    "queue_full",
    "key_full",
    "overlap",
    "owner_taking_over",
    "lease_quota",
)

_MICROSECOND = datetime.resolution
# A cancel that is asked for changes nothing about where the run is.
_MOVES = WAITING_EVENTS | GONE_EVENTS | {"run_leased"}
_ENDS = GONE_EVENTS - {"run_held"}
_DELAYS: dict[str, tuple[Cause, str]] = {
    "run_scheduled": ("not_due", "it was not due yet"),
    "run_retried": ("retry_delay", "it waited for its next attempt"),
    "run_released": ("snoozed", "its worker had put it off"),
}
_SPREAD: tuple[Cause, str] = ("catching_up", "it was made up for, spread at its queue's rate")


class LifeEvent(NamedTuple):
    """An event of the run (schemas/events.py), as far as it tells where the run's time went."""

    type: str
    at: datetime
    due_at: datetime | None = None
    attempt: int | None = None
    worker_id: str | None = None
    reason: str | None = None
    scheduled_for: datetime | None = None

    @property
    def is_spread(self) -> bool:
        """Whether it made the run due when its queue's rate let it."""
        return self.type == "run_scheduled" and self.reason == SPREAD


class Hindrance(NamedTuple):
    """What kept the run from being leased, had it been due. cause: one of PRIORITY. until: None while it lasts."""

    cause: Cause
    since: datetime
    until: datetime | None
    sentence: str


class Interval(NamedTuple):
    start: datetime
    end: datetime
    cause: Cause
    sentence: str

    @property
    def micros(self) -> int:
        return (self.end - self.start) // _MICROSECOND


class Timeline(NamedTuple):
    """due_at: since when the run's first lease was wanted. lateness_us: until that lease, the run's end, or now.

    intervals: from due_at to the run's end or now; those of a run that is not due yet, from its making on; those of a
    made-up one whose turn was its queue's to give, from its nominal time on. Those from due_at until first_leased_at
    (the end, or now) are the lateness. end: the event that ended the run. made_up_us: from the nominal time to due_at.
    """

    due_at: datetime | None
    first_leased_at: datetime | None
    end: LifeEvent | None
    lateness_us: int
    intervals: list[Interval]
    made_up_us: int = 0

    def is_late(self, interval: Interval) -> bool:
        """Whether the interval is part of the lateness."""
        if not self.lateness_us or self.due_at is None or interval.start < self.due_at:
            return False
        return self.first_leased_at is None or interval.end <= self.first_leased_at


def timeline(events: Sequence[LifeEvent], hindrances: Sequence[Hindrance], now: datetime) -> Timeline:
    """The life of a run so far, from all of its events in the order of their versions (at least one) to `now`."""
    moves = _in_order([event for event in events if event.type in _MOVES])
    if not moves:
        return Timeline(None, None, None, 0, [])
    lease = next((event for event in moves if event.type == "run_leased"), None)
    end = moves[-1] if moves[-1].type in _ENDS else None
    over_at = end.at if end else max(now, moves[-1].at)
    due_at = lease.due_at if lease else _last_due(moves)
    late_until = lease.at if lease else over_at
    late = due_at is not None and due_at < late_until
    start = due_at if late and due_at else lease.at if lease else moves[0].at
    wanted_at = nominal_due(moves)
    begin = min(start, wanted_at) if wanted_at else start
    ranked = sorted(hindrances, key=lambda hindrance: PRIORITY.index(hindrance.cause))
    lateness = (start if late else late_until, late_until)
    intervals = _merged(_cut(_intervals(moves, ranked, begin, over_at), lateness[0]), lateness)
    lateness_us = (lateness[1] - lateness[0]) // _MICROSECOND
    _prove(intervals, begin, over_at, lateness, lateness_us)
    made_up_us = max(0, (due_at - wanted_at) // _MICROSECOND) if due_at and wanted_at else 0
    return Timeline(due_at, lease and lease.at, end, lateness_us, intervals, made_up_us)


def nominal_due(events: Sequence[LifeEvent]) -> datetime | None:
    """When a run was due before its queue's rate put it off, to catch up; None for any other run."""
    if not events or not any(event.is_spread for event in events):
        return None
    first = events[0]
    return first.scheduled_for if first.is_spread else first.due_at


def _in_order(moves: list[LifeEvent]) -> list[LifeEvent]:
    """The events with instants that never go back.

    An event's instant is when its transaction began, which may be before the one whose commit it waited for. The first
    lease keeps its own, since lateness is measured by it.
    """
    first = next((index for index, event in enumerate(moves) if event.type == "run_leased"), None)
    if first is not None:
        anchor = moves[first].at
        moves = [event._replace(at=min(event.at, anchor)) for event in moves[:first]] + moves[first:]
    instants = accumulate((event.at for event in moves), max)
    return [event._replace(at=at) for event, at in zip(moves, instants, strict=True)]


def _last_due(moves: Sequence[LifeEvent]) -> datetime | None:
    return next((event.due_at for event in reversed(moves) if event.due_at is not None), None)


def _intervals(
    moves: Sequence[LifeEvent], hindrances: Sequence[Hindrance], start: datetime, end: datetime
) -> Iterator[Interval]:
    """One after the other; some may be empty."""
    yield from _waits(start, max(start, moves[0].at), hindrances, "not_decided", "it was due, but not made yet")
    for event, following in zip(moves, [*moves[1:], None], strict=True):
        since = max(start, event.at)
        until = max(start, following.at if following else end)
        yield from _after(event, following, hindrances, since, until)


def _after(
    event: LifeEvent,
    following: LifeEvent | None,
    hindrances: Sequence[Hindrance],
    start: datetime,
    end: datetime,
) -> Iterator[Interval]:
    """What the run did after an event and before the following one."""
    if event.type == "run_leased":
        yield Interval(start, end, "running", _attempt(event, following))
    elif event.type == "run_held":
        yield Interval(start, end, "job_paused", "its job was paused")
    elif event.type in _ENDS:
        yield Interval(start, end, "ended", f"it was {event.type.removeprefix('run_')}, until it was made again")
    else:
        due_at = min(max(event.due_at or start, start), end)
        yield Interval(start, due_at, *(_SPREAD if event.is_spread else _DELAYS[event.type]))
        yield from _waits(due_at, end, hindrances, "no_worker_asked", "it was due, and no worker had taken it")


def _attempt(event: LifeEvent, following: LifeEvent | None) -> str:
    attempt = f"attempt {event.attempt} on worker {event.worker_id}"
    if following is None:
        return attempt
    reason = f": {following.reason}" if following.reason else ""
    return f"{attempt}, {following.type.removeprefix('run_')}{reason}"


def _waits(
    start: datetime, end: datetime, hindrances: Sequence[Hindrance], otherwise: Cause, sentence: str
) -> Iterator[Interval]:
    """A wait of a due run, cut where hindrances begin and end; the first one that holds is the cause of a piece."""
    bounds = (bound for each in hindrances for bound in (each.since, each.until) if bound and start < bound < end)
    for since, until in pairwise(sorted({start, end, *bounds})):
        hindrance = next((each for each in hindrances if _holds(each, since, until)), None)
        yield Interval(since, until, *((hindrance.cause, hindrance.sentence) if hindrance else (otherwise, sentence)))


def _holds(hindrance: Hindrance, since: datetime, until: datetime) -> bool:
    return hindrance.since <= since and (hindrance.until is None or hindrance.until >= until)


def _cut(intervals: Iterator[Interval], at: datetime) -> Iterator[Interval]:
    """With a bound at that instant, if it is within one of them."""
    for each in intervals:
        if each.start < at < each.end:
            yield each._replace(end=at)
            yield each._replace(start=at)
        else:
            yield each


def _merged(intervals: Iterator[Interval], lateness: tuple[datetime, datetime]) -> list[Interval]:
    """Without the empty ones; neighbours of the same cause are one, unless the lateness begins or ends between them."""
    merged: list[Interval] = []
    for each in intervals:
        if merged and merged[-1][2:] == each[2:] and each.start not in lateness:
            merged[-1] = merged[-1]._replace(end=each.end)
        elif each.start < each.end:
            merged.append(each)
    return merged


def _prove(
    intervals: Sequence[Interval],
    begin: datetime,
    end: datetime,
    lateness: tuple[datetime, datetime],
    lateness_us: int,
) -> None:
    """Raises InvariantBroken unless the intervals cover the line exactly, and those of the lateness sum up to it."""
    bounds = [begin, *(each.end for each in intervals)]
    gapless = [each.start for each in intervals] == bounds[:-1] and bounds[-1] == end
    late = [each for each in intervals if lateness[0] <= each.start and each.end <= lateness[1]]
    if not gapless or sum(each.micros for each in late) != lateness_us:
        raise InvariantBroken(f"the intervals from {begin} to {end} do not sum up: {intervals}")
