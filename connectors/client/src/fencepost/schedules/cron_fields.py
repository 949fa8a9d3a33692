# Generated from schemas/cron_fields.py by connectors/client/generate_copies.py (make copies): change it there.
"""What a cron expression says: five fields of text become sets of minutes, hours, days, months, weekdays.

The line as a whole, the aliases, `L` and `#` are read here; the terms of each field in schemas/cron_terms.
croniter would intersect `#` and `L` with the day of month, and turn an alias into six hashed fields when
given an id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from fencepost.schedules.cron_terms import (
    DAY,
    FIELD_NAMES,
    HOUR,
    MINUTE,
    MONTH,
    WEEKDAY,
    refuse,
    refuse_term,
    term_values,
)

MAX_LENGTH = 256
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_NTH = re.compile(r"(?P<days>(?:[0-9]+|[a-z]{3})(?:-(?:[0-9]+|[a-z]{3}))?)#(?P<nth>[0-9]+)")
_LAST = re.compile(r"l(?P<day>[0-9]+|[a-z]{3})")
_USES_HASH = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Days:
    """Which days: the day-of-month, month and day-of-week fields together. Sunday is 0.

    by_day, by_weekday: whether the field restricts at all, that is, is anything but exactly `*` or `?`.
    Both restricted means either may match (ARCHITECTURE, Time).
    """

    days: frozenset[int]
    last_day: bool
    months: frozenset[int]
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]]
    last_weekdays: frozenset[int]
    by_day: bool
    by_weekday: bool


@dataclass(frozen=True, slots=True)
class Fields:
    """The sets a cron expression stands for."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: Days


def uses_hash(expr: str) -> bool:
    """Whether the expression's meaning depends on the job id."""
    return _USES_HASH.search(expr) is not None


def parse_fields(expr: str, job_key: str) -> Fields:
    """Read a cron expression; `job_key` is what `H` hashes (by crc32, as croniter does).

    Raises InvalidSchedule with field `cron`, naming the part that is wrong and what to write instead.
    """
    minute, hour, day, month, weekday = _split(expr)
    key = job_key.encode()
    last_day, day_terms = _take_last_day(day)
    weekday_terms, nth, last = _take_special_weekdays(weekday, key)
    return Fields(
        minutes=term_values(MINUTE, minute.split(","), key),
        hours=term_values(HOUR, hour.split(","), key),
        days=Days(
            days=term_values(DAY, day_terms, key),
            last_day=last_day,
            months=term_values(MONTH, month.split(","), key),
            weekdays=term_values(WEEKDAY, weekday_terms, key),
            nth_weekdays=nth,
            last_weekdays=last,
            by_day=day not in ("*", "?"),
            by_weekday=weekday not in ("*", "?"),
        ),
    )


def _split(expr: str) -> list[str]:
    """The five fields in lower case, after everything that can be said about the line as a whole."""
    if len(expr) > MAX_LENGTH:
        refuse(f"the expression is longer than {MAX_LENGTH} characters")
    if "\n" in expr or "\r" in expr:
        refuse("the expression holds a line break", "give one expression on one line")
    if not expr.isascii():
        refuse("the expression holds a character that is not ASCII", "use the digits 0-9 and plain spaces")
    if not expr.replace("\t", " ").isprintable():
        refuse("the expression holds a control character")
    text = expr.strip().lower()
    if not text:
        refuse("the expression is empty", "for example '0 9 * * MON-FRI'")
    if text.startswith("@"):
        text = _alias(text)
    fields = text.split()
    if len(fields) != len(FIELD_NAMES):
        _refuse_field_count(text, len(fields))
    return fields


def _alias(text: str) -> str:
    if text not in ALIASES:
        _refuse_alias(text)
    return ALIASES[text]


def _refuse_alias(text: str) -> NoReturn:
    alias = text.split()[0]
    if alias == "@reboot":
        refuse("@reboot is no time", "for a single run use runAt or delaySeconds")
    remedies = {
        "@every": "for an interval use everySeconds",
        "@once": "for a single run use runAt or delaySeconds",
        "@quarterly": "write 0 0 1 */3 *",
    }
    refuse(f"unknown alias {alias!r}", remedies.get(alias, f"use {', '.join(ALIASES)}"))


def _refuse_field_count(text: str, count: int) -> NoReturn:
    if "tz=" in text:
        remedy = "the time zone is a field of its own: zone"
    elif count > len(FIELD_NAMES):
        remedy = "seconds and years are not supported: for less than a minute use everySeconds"
    else:
        remedy = "for an interval use everySeconds"
    refuse(f"a cron expression has 5 fields ({', '.join(FIELD_NAMES)}), this one has {count}", remedy)


def _take_last_day(field: str) -> tuple[bool, list[str]]:
    """Take the `L`s out of a day-of-month field: (whether there was one, the other terms)."""
    terms = field.split(",")
    return "l" in terms, [term for term in terms if term != "l"]


def _take_special_weekdays(field: str, key: bytes) -> tuple[list[str], frozenset[tuple[int, int]], frozenset[int]]:
    """Take `FRI#2` and `L5` out of a day-of-week field: (other terms, nth weekdays, last weekdays)."""
    plain: list[str] = []
    nth_weekdays: set[tuple[int, int]] = set()
    last_weekdays: set[int] = set()
    for term in field.split(","):
        if nth := _NTH.fullmatch(term):
            which = int(nth["nth"])
            if not 1 <= which <= 5:
                refuse_term(WEEKDAY, term, "asks for a week that no month has", "use #1 to #5")
            nth_weekdays |= {(day, which) for day in term_values(WEEKDAY, [nth["days"]], key)}
        elif last := _LAST.fullmatch(term):
            last_weekdays |= term_values(WEEKDAY, [last["day"]], key)
        else:
            plain.append(term)
    return plain, frozenset(nth_weekdays), frozenset(last_weekdays)
