# Generated from schemas/zone_rule.py by connectors/client/generate_copies.py (make copies): change it there.
"""When a cron expression fires in a zone: the rule for the nights on which clocks are changed.

Clock-like (the hours do not cover the day): each matching local minute fires once. One that the clock jumps
over fires at the first instant after the gap, several together as one; one that is read twice fires at its
first. Put shortly: minute m fires at the first instant at which the wall clock has shown m or later.

Interval-like (every hour): it fires at every real instant whose local reading matches.

Source: ARCHITECTURE, Time. All in integer seconds, UTC since 1970 (instant) or on the wall clock (reading).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from fencepost.schedules.cron import CronExpression
from fencepost.schedules.zones import EARLY_S, FAR_S, NEAR_S, Timeline, timeline

Mark = Literal["gap", "fold"]

_REACHES = (NEAR_S, FAR_S)
_WIDEST_OFFSET_S = 26 * 3600
_EPOCH = datetime(1970, 1, 1)


def next_instant(cron: CronExpression, zone: str, after: int) -> int | None:
    """The first fire strictly after `after`; None if there is none before the year 2500."""
    step = _next_interval_like if cron.every_hour else _next_clock_like
    after = max(after, EARLY_S)
    for reach in _REACHES:
        line = timeline(zone, reach)
        instant = step(cron, line, after) if after < line.reach else None
        if instant is not None and instant < line.reach:
            return instant
    return None


def previous_instant(cron: CronExpression, zone: str, at: int) -> int | None:
    """The last fire at or before `at`; None if there is none since 1900."""
    at = min(at, FAR_S - 1)
    if at < EARLY_S:
        return None
    step = _previous_interval_like if cron.every_hour else _previous_clock_like
    instant = step(cron, timeline(zone, NEAR_S if at < NEAR_S else FAR_S), at)
    return None if instant is None or instant < EARLY_S else instant


def first_instant(zone: str, reading: int) -> int:
    """The instant a local reading stands for: its first occurrence, or the end of the gap that holds it."""
    return _first_instant(timeline(zone, NEAR_S if reading < NEAR_S - _WIDEST_OFFSET_S else FAR_S), reading)


def carried_instant(cron: CronExpression, former: str, zone: str, decided: int) -> int | None:
    """The first fire by the rules of `zone` of what had not fired by those of `former` when `decided` had come.

    former: the zone with other rules. Clock-like: of the local minutes that it had not shown yet; where that is by the
    rules of `zone` may be before `decided`. Interval-like: what fires after `decided`, for it goes by real time.
    """
    if cron.every_hour:
        return next_instant(cron, zone, decided)
    line = timeline(former, NEAR_S if decided < NEAR_S else FAR_S)
    minute = cron.next_minute(line.shown(decided) // 60 + 1)
    return None if minute is None else first_instant(zone, minute * 60)


def mark(cron: CronExpression, zone: str, instant: int) -> Mark | None:
    """What is odd about a fire: moved to the end of a gap, or on a reading that occurs twice."""
    line = timeline(zone, NEAR_S if instant < NEAR_S else FAR_S)
    i = line.stretch(instant)
    reading = instant + line.offsets[i]
    if reading % 60 or cron.next_minute(reading // 60) != reading // 60:
        return "gap"
    again = i + 1 < len(line.starts) and line.starts[i + 1] + line.offsets[i + 1] <= reading
    return "fold" if again or reading <= line.peaks[i] else None


def skipped_reading(cron: CronExpression, zone: str, instant: int) -> int:
    """Of a fire marked `gap`: the first matching reading that the clock jumped over."""
    line = timeline(zone, NEAR_S if instant < NEAR_S else FAR_S)
    minute = cron.next_minute(line.peaks[line.stretch(instant)] // 60 + 1)
    assert minute is not None, "a fire in a gap has a matching reading there"
    return minute * 60


def instant_of(local: datetime, zone: str) -> datetime:
    """The UTC instant of a naive wall-clock time, by the clock-like rule."""
    reading = local_reading(local)
    instant = first_instant(zone, reading)
    line = timeline(zone, NEAR_S if instant < NEAR_S else FAR_S)
    in_gap = instant + line.offsets[line.stretch(instant)] != reading
    return datetime.fromtimestamp(instant, UTC).replace(microsecond=0 if in_gap else local.microsecond)


def local_reading(local: datetime) -> int:
    """A naive wall-clock time as seconds."""
    return (local - _EPOCH) // timedelta(seconds=1)


def _next_clock_like(cron: CronExpression, line: Timeline, after: int) -> int | None:
    minute = cron.next_minute(line.shown(after) // 60 + 1)
    return None if minute is None else _first_instant(line, minute * 60)


def _previous_clock_like(cron: CronExpression, line: Timeline, at: int) -> int | None:
    minute = cron.previous_minute(line.shown(at) // 60)
    return None if minute is None else _first_instant(line, minute * 60)


def _first_instant(line: Timeline, reading: int) -> int:
    """The first instant at which the wall clock shows `reading` or later."""
    i = line.stretch(reading - _WIDEST_OFFSET_S)
    last = len(line.starts) - 1
    while i < last and line.starts[i + 1] + line.offsets[i] <= reading:
        i += 1
    return max(line.starts[i], reading - line.offsets[i])


def _next_interval_like(cron: CronExpression, line: Timeline, after: int) -> int | None:
    i = line.stretch(after)
    shown = after + line.offsets[i]
    while True:
        minute = cron.next_minute(shown // 60 + 1)
        if minute is None:
            return None
        instant = minute * 60 - line.offsets[i]
        if i + 1 == len(line.starts) or instant < line.starts[i + 1]:
            return instant
        i += 1
        shown = line.starts[i] + line.offsets[i] - 1


def _previous_interval_like(cron: CronExpression, line: Timeline, at: int) -> int | None:
    i = line.stretch(at)
    shown = at + line.offsets[i]
    while True:
        minute = cron.previous_minute(shown // 60)
        if minute is None:
            return None
        instant = minute * 60 - line.offsets[i]
        if instant >= line.starts[i]:
            return instant
        shown = line.starts[i] + line.offsets[i - 1] - 1
        i -= 1
