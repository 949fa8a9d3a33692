"""A brute-force oracle for cron in time zones: it walks over minutes and believes nobody.

It shares no code with schemas/: expressions are drawn together with the sets they stand for, so nothing is parsed;
offsets come from zoneinfo; days and minutes are tried one after the other.
"""

from __future__ import annotations

import calendar
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib import resources
from itertools import count
from random import Random
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

DayTest = Callable[[date], bool]


@dataclass(frozen=True)
class DrawnCron:
    """An expression and what it means."""

    expr: str
    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    day_tests: tuple[DayTest, ...] | None
    weekday_tests: tuple[DayTest, ...] | None
    times: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        times = tuple(t for t in range(1440) if t // 60 in self.hours and t % 60 in self.minutes)
        object.__setattr__(self, "times", times)

    @property
    def interval_like(self) -> bool:
        return self.hours == frozenset(range(24))

    def on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        restrictions = [tests for tests in (self.day_tests, self.weekday_tests) if tests is not None]
        return not restrictions or any(test(day) for tests in restrictions for test in tests)


@lru_cache(maxsize=1024)
def oracle_zone(name: str) -> ZoneInfo:
    data = resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).read_bytes()
    return ZoneInfo.from_file(io.BytesIO(data))


def expected_next(cron: DrawnCron, zone_name: str, after: datetime) -> datetime:
    """The first fire strictly after `after`, by walking."""
    info = oracle_zone(zone_name)
    walk = interval_like_fires if cron.interval_like else clock_like_fires
    return next(fire for fire in walk(cron, info, after) if fire > after)


def clock_like_fires(cron: DrawnCron, info: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """From somewhat before `start`: every matching local minute, turned into the instant it runs at."""
    local = start.astimezone(info).replace(tzinfo=None) - _spread(info, start)
    day = local.date()
    while True:
        if cron.on(day):
            midnight = datetime(day.year, day.month, day.day)
            for time in cron.times:
                minute = midnight + time * MINUTE
                if minute >= local - MINUTE:
                    yield instant_of_reading(info, minute)
        day += DAY


def interval_like_fires(cron: DrawnCron, info: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """From `start`: every real second at which the clock reads a matching minute and no seconds."""
    instant = start.replace(microsecond=0)
    today, is_on, is_far = date.min, False, False
    while True:
        local = instant.astimezone(info)
        if local.date() != today:
            today = local.date()
            is_on = cron.on(today)
            is_far = not any(cron.on(today + days * DAY) for days in (-1, 0, 1, 2))
        if is_far:
            # No clock change leads from here to another day than these, nor over more than one day.
            instant += max(timedelta(hours=12), (_days_until_on(cron, today) - 3) * DAY)
            continue
        if local.second == 0 and local.minute in cron.minutes and local.hour in cron.hours and is_on:
            yield instant
        instant = _next_full_minute(info, instant)


def _days_until_on(cron: DrawnCron, today: date) -> int:
    return next(days for days in count() if cron.on(today + days * DAY))


def instant_of_reading(info: ZoneInfo, local: datetime) -> datetime:
    """The first instant with that reading, or the first instant after the gap that swallows it."""
    readings = [local.replace(tzinfo=info, fold=fold).astimezone(UTC) for fold in (0, 1)]
    real = [t for t in readings if t.astimezone(info).replace(tzinfo=None) == local]
    if real:
        return min(real)
    instant = min(readings)
    while (instant + MINUTE).astimezone(info).replace(tzinfo=None) < local:
        instant += MINUTE
    while instant.astimezone(info).replace(tzinfo=None) < local:
        instant += SECOND
    return instant


def _next_full_minute(info: ZoneInfo, instant: datetime) -> datetime:
    """The next instant at which the clock may read no seconds; second by second where the offset changes."""
    local = instant.astimezone(info)
    later = instant + (60 - local.second) * SECOND
    if later.astimezone(info).utcoffset() == local.utcoffset():
        return later
    instant += SECOND
    while instant.astimezone(info).second:
        instant += SECOND
    return instant


def _spread(info: ZoneInfo, instant: datetime) -> timedelta:
    """How far apart the zone's offsets are in the two days around: how much can be read twice."""
    around = [(instant + hours * 60 * MINUTE).astimezone(info).utcoffset() for hours in range(-49, 50)]
    offsets = [offset for offset in around if offset is not None]
    return max(offsets) - min(offsets)


def draw_cron(random: Random) -> DrawnCron:
    """A random expression of every form the dialect has, that fires within a few years."""
    minute_text, minutes = _draw_field(random, 0, 59)
    hour_text, hours = _draw_field(random, 0, 23, every=0.35)
    month_text, months = _draw_field(random, 1, 12, every=0.8, names=MONTHS)
    day_text, day_tests = _draw_days(random)
    weekday_text, weekday_tests = _draw_weekdays(random)
    drawn = DrawnCron(
        " ".join((minute_text, hour_text, day_text, month_text, weekday_text)),
        minutes,
        hours,
        months,
        day_tests,
        weekday_tests,
    )
    fires = any(drawn.on(date(2001, 1, 1) + days * DAY) for days in range(365))
    return drawn if fires else draw_cron(random)


def _draw_field(
    random: Random, low: int, high: int, *, every: float = 0.15, names: tuple[str, ...] = ()
) -> tuple[str, frozenset[int]]:
    if random.random() < every:
        return "*", frozenset(range(low, high + 1))
    terms = [_draw_term(random, low, high, names) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    return ",".join(text for text, _ in terms), frozenset().union(*(values for _, values in terms))


def _draw_term(random: Random, low: int, high: int, names: tuple[str, ...]) -> tuple[str, frozenset[int]]:
    """One of n, a-b, a-b/s, */s, a/s; ranges may wrap, or hold one value only."""
    first, last = random.randint(low, high), random.randint(low, high)
    step = random.choice((1, 2, 3, 5, 7, random.randint(1, high - low + 1)))
    step = min(step, high - low + 1)
    cycle = [first + i if first + i <= high else first + i - (high - low + 1) for i in range(high - low + 1)]
    a_to_b = cycle[: cycle.index(last) + 1]
    a, b = (_spelled(random, value, low, names) for value in (first, last))
    return random.choice(
        (
            (a, frozenset({first})),
            (f"{a}-{b}", frozenset(a_to_b)),
            (f"{a}-{b}/{step}", frozenset(a_to_b[::step])),
            (f"*/{step}", frozenset(range(low, high + 1, step))),
            (f"{a}/{step}", frozenset(range(first, high + 1, step))),
        )
    )


def _spelled(random: Random, value: int, low: int, names: tuple[str, ...]) -> str:
    if names and random.random() < 0.4:
        return random.choice((str.upper, str.title, str))(names[value - low])
    return f"{value:02}" if random.random() < 0.1 else str(value)


def _draw_days(random: Random) -> tuple[str, tuple[DayTest, ...] | None]:
    kind = random.random()
    if kind < 0.5:
        return random.choice("**?"), None
    if kind < 0.62:
        return "L", (_is_last_day,)
    text, days = _draw_field(random, 1, 31, every=0)
    tests: tuple[DayTest, ...] = (lambda day: day.day in days,)
    if kind < 0.68:
        return f"{text},L", (*tests, _is_last_day)
    return text, tests


def _draw_weekdays(random: Random) -> tuple[str, tuple[DayTest, ...] | None]:
    kind = random.random()
    if kind < 0.5:
        return random.choice("**?"), None
    weekday = random.randint(0, 6)
    name = random.choice((WEEKDAYS[weekday].upper(), str(weekday)))
    if kind < 0.58:
        nth = random.randint(1, 5)
        return f"{name}#{nth}", (lambda day: _weekday(day) == weekday and (day.day - 1) // 7 + 1 == nth,)
    if kind < 0.66:
        return f"L{weekday}", (lambda day: _weekday(day) == weekday and (day + 7 * DAY).month != day.month,)
    if kind < 0.7:
        return "5-7", (lambda day: _weekday(day) in (5, 6, 0),)
    text, weekdays = _draw_field(random, 0, 6, every=0, names=WEEKDAYS)
    return text, (lambda day: _weekday(day) in weekdays,)


def _weekday(day: date) -> int:
    return day.isoweekday() % 7


def _is_last_day(day: date) -> bool:
    return day.day == calendar.monthrange(day.year, day.month)[1]
