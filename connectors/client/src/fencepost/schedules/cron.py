# Generated from schemas/cron.py by connectors/client/generate_copies.py (make copies): change it there.
"""A compiled cron expression: the next and the previous local minute that matches, by shifting bit masks.

Local time here is a plain count of minutes since 1970-01-01T00:00 on the wall clock; zones come in
schemas/zone_rule. Every Gregorian year is one of 14 shapes (leap or not, weekday of 1 January), so a bit
mask of the matching days per shape makes 29 February as cheap as every day, and tells at once whether an
expression can ever fire.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import pairwise

from fencepost.schedules.cron_fields import Days, parse_fields, uses_hash
from fencepost.schedules.errors import InvalidSchedule

DAY_MINUTES = 24 * 60
LAST_YEAR = 2500
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_NEW_YEAR = tuple(date(year, 1, 1).toordinal() - _EPOCH_ORDINAL for year in range(1, LAST_YEAR + 3))
_SHAPES = 14
_MONTH_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _new_year(year: int) -> int:
    """Days from 1970 to 1 January."""
    return _NEW_YEAR[year - 1]


_YEAR_SHAPE = tuple((after - before - 365) * 7 + (before + 4) % 7 for before, after in pairwise(_NEW_YEAR))


class YearDays:
    """The matching days of any year, as one mask per shape of year: bit n is the n-th day counted from 0."""

    __slots__ = ("_masks", "_rule")

    def __init__(self, rule: Days) -> None:
        self._rule = rule
        self._masks: list[int | None] = [None] * _SHAPES

    def ever(self) -> bool:
        """Whether any day matches: all 14 shapes occur within 40 years."""
        return any(self._mask(shape) for shape in range(_SHAPES))

    def next_day(self, day: int) -> int | None:
        """The first matching day (counted from 1970) on or after `day`; None past LAST_YEAR."""
        year = date.fromordinal(day + _EPOCH_ORDINAL).year
        skipped = day - _new_year(year)
        while year <= LAST_YEAR:
            rest = self._mask(_YEAR_SHAPE[year - 1]) >> skipped
            if rest:
                return _new_year(year) + skipped + lowest_bit(rest)
            year += 1
            skipped = 0
        return None

    def previous_day(self, day: int) -> int | None:
        """The last matching day on or before `day`; None before the year 1."""
        year = date.fromordinal(day + _EPOCH_ORDINAL).year
        wanted = (2 << (day - _new_year(year))) - 1
        while year >= 1:
            rest = self._mask(_YEAR_SHAPE[year - 1]) & wanted
            if rest:
                return _new_year(year) + rest.bit_length() - 1
            year -= 1
            wanted = -1
        return None

    def count(self, first: int, last: int) -> int:
        """How many days from `first` to `last`, both included, match."""
        count = 0
        while first <= last:
            year = date.fromordinal(first + _EPOCH_ORDINAL).year
            start, end = _new_year(year), min(last, _new_year(year + 1) - 1)
            wanted = ((2 << (end - start)) - 1) >> (first - start) << (first - start)
            count += (self._mask(_YEAR_SHAPE[year - 1]) & wanted).bit_count()
            first = end + 1
        return count

    def _mask(self, shape: int) -> int:
        mask = self._masks[shape]
        if mask is None:
            mask = self._masks[shape] = _shape_mask(self._rule, shape)
        return mask


def _shape_mask(rule: Days, shape: int) -> int:
    leap, weekday = divmod(shape, 7)
    mask, bit = 0, 1
    for month, usual_length in enumerate(_MONTH_LENGTHS, start=1):
        length = usual_length + (leap if month == 2 else 0)
        for day in range(1, length + 1):
            if month in rule.months and _day_matches(rule, day, length, weekday):
                mask |= bit
            bit <<= 1
            weekday = (weekday + 1) % 7
    return mask


def _day_matches(rule: Days, day: int, month_length: int, weekday: int) -> bool:
    by_day = day in rule.days or (rule.last_day and day == month_length)
    by_weekday = (
        weekday in rule.weekdays
        or (weekday, (day + 6) // 7) in rule.nth_weekdays
        or (weekday in rule.last_weekdays and day + 7 > month_length)
    )
    if rule.by_day and rule.by_weekday:
        return by_day or by_weekday
    return by_day and by_weekday


def lowest_bit(mask: int) -> int:
    """The position of the lowest bit of a mask that is not 0."""
    return (mask & -mask).bit_length() - 1


@dataclass(frozen=True, slots=True)
class CronExpression:
    """times: bit n is the n-th minute of a matching day. every_hour: whether the hours cover the day."""

    times: int
    every_hour: bool
    days: YearDays

    def next_minute(self, minute: int) -> int | None:
        """The first matching local minute at or after `minute`; None past LAST_YEAR."""
        today, time = divmod(minute, DAY_MINUTES)
        day = self.days.next_day(today)
        if day == today:
            rest = self.times >> time
            if rest:
                return minute + lowest_bit(rest)
            day = self.days.next_day(today + 1)
        return None if day is None else day * DAY_MINUTES + lowest_bit(self.times)

    def previous_minute(self, minute: int) -> int | None:
        """The last matching local minute at or before `minute`."""
        today, time = divmod(minute, DAY_MINUTES)
        day = self.days.previous_day(today)
        if day == today:
            rest = self.times & ((2 << time) - 1)
            if rest:
                return today * DAY_MINUTES + rest.bit_length() - 1
            day = self.days.previous_day(today - 1)
        return None if day is None else day * DAY_MINUTES + self.times.bit_length() - 1

    def count(self, first: int, last: int) -> int:
        """How many local minutes from `first` to `last`, both included, match."""
        if last < first:
            return 0
        (first_day, first_time), (last_day, last_time) = divmod(first, DAY_MINUTES), divmod(last, DAY_MINUTES)
        from_first, to_last = -1 << first_time, (2 << last_time) - 1
        if first_day == last_day:
            return self.days.count(first_day, first_day) * (self.times & from_first & to_last).bit_count()
        return (
            self.days.count(first_day, first_day) * (self.times & from_first).bit_count()
            + self.days.count(first_day + 1, last_day - 1) * self.times.bit_count()
            + self.days.count(last_day, last_day) * (self.times & to_last).bit_count()
        )


def cron_expression(expr: str, job_key: str) -> CronExpression:
    """The compiled expression; cached. job_key: the job id as text, which is what `H` hashes.

    Raises InvalidSchedule when it is no expression of ours, or one that can never fire.
    """
    return _compile(expr, job_key if uses_hash(expr) else "")


@lru_cache(maxsize=65_536)
def _compile(expr: str, job_key: str) -> CronExpression:
    fields = parse_fields(expr, job_key)
    days = _year_days(fields.days)
    if not days.ever():
        raise InvalidSchedule("cron", f"{expr!r} can never fire", "no month has such a day; try L for the last")
    return CronExpression(
        times=sum(1 << (hour * 60 + minute) for hour in fields.hours for minute in fields.minutes),
        every_hour=len(fields.hours) == 24,
        days=days,
    )


@lru_cache(maxsize=8_192)
def _year_days(rule: Days) -> YearDays:
    return YearDays(rule)
