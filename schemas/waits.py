"""Why a run waited: its life cut into intervals, each with its cause, that leave no gap and sum up to its lateness.

Pure. The line begins when the run was due and ends when the run ended, or now. Until the first lease everything on it
is lateness; after it the line tells of attempts, and of the waits between them. Source: ARCHITECTURE, Policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from schemas.errors import InvariantBroken
from schemas.events import GONE_EVENTS, WAITING_EVENTS

Cause = Literal[
    "not_due",  # it waits for its time
    "not_decided",  # it was due, but its owner had not made the run yet
    "job_paused",
    "tenant_paused",
    "queue_paused",
    "overlap",  # another run of its job was leased
    "owner_taking_over",  # its partition had no owner who could hint it
    "no_worker_asked",  # the rest: it was there to be leased
    "running",
    "retry_delay",
    "snoozed",
    "ended",  # between its end and a replay
]
# Where several hold at once, the first one counts. A paused job comes before them all: its runs are put aside.
PRIORITY: tuple[Cause, ...] = ("tenant_paused", "queue_paused", "overlap", "owner_taking_over")

_MICROSECOND = datetime.resolution
# A cancel that is asked for changes nothing about where the run is.
_MOVES = WAITING_EVENTS | GONE_EVENTS | {"run_leased"}
_ENDS = GONE_EVENTS - {"run_held"}
_DELAYS: dict[str, tuple[Cause, str]] = {
    "run_scheduled": ("not_due", "it was not due yet"),
    "run_retried": ("retry_delay", "it waited for its next attempt"),
    "run_released": ("snoozed", "its worker had put it off"),
}


class LifeEvent(NamedTuple):
    """An event of the run (schemas/events.py), as far as it tells where the run's time went."""

    type: str
    at: datetime
    due_at: datetime | None = None
    attempt: int | None = None
    worker_id: str | None = None
    reason: str | None = None


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

    intervals: from due_at to the run's end or now; those of a run that is not due yet, from its making on. Those until
    first_leased_at (the end, or now) are the lateness. end: the event that ended the run.
    """

    due_at: datetime | None
    first_leased_at: datetime | None
    end: LifeEvent | None
    lateness_us: int
    intervals: list[Interval]

    def is_late(self, interval: Interval) -> bool:
        """Whether the interval is part of the lateness."""
        return self.lateness_us > 0 and (self.first_leased_at is None or interval.end <= self.first_leased_at)


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
    ranked = sorted(hindrances, key=lambda hindrance: PRIORITY.index(hindrance.cause))
    intervals = _merged(_intervals(moves, ranked, start, over_at), late_until)
    lateness_us = (late_until - start) // _MICROSECOND if late else 0
    _prove(intervals, start, over_at, late_until if late else start, lateness_us)
    return Timeline(due_at, lease and lease.at, end, lateness_us, intervals)


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
        yield Interval(start, due_at, *_DELAYS[event.type])
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


def _merged(intervals: Iterator[Interval], late_until: datetime) -> list[Interval]:
    """Without the empty ones; neighbours of the same cause are one, unless the first lease lies between them."""
    merged: list[Interval] = []
    for each in intervals:
        if merged and merged[-1][2:] == each[2:] and each.start != late_until:
            merged[-1] = merged[-1]._replace(end=each.end)
        elif each.start < each.end:
            merged.append(each)
    return merged


def _prove(
    intervals: Sequence[Interval], start: datetime, end: datetime, late_until: datetime, lateness_us: int
) -> None:
    """Raises InvariantBroken unless the intervals cover the line exactly, and their beginning the lateness."""
    bounds = [start, *(each.end for each in intervals)]
    gapless = [each.start for each in intervals] == bounds[:-1] and bounds[-1] == end
    if not gapless or sum(each.micros for each in intervals if each.end <= late_until) != lateness_us:
        raise InvariantBroken(f"the intervals from {start} to {end} do not sum up: {intervals}")
