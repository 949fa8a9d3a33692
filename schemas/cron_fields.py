"""What a cron expression says: five fields of text become sets of minutes, hours, days, months, weekdays.

Who does what. croniter turns names into numbers, hashes `H` and expands ranges and steps. Ours are the
grammar and its messages, and the rewriting of what croniter 5 reads wrongly before it sees it:

* `1-1`, `59/15`, `23-23/24`: a range of one value is that value, not the whole cycle;
* `22-4/3`: the step of a wrapping range goes on counting over the end of the field;
* `H(0-5)/10`, `H/60`: the hashed start stays inside its range;
* `#` and `L` in the day of week, which croniter intersects with the day of month;
* aliases, which croniter turns into six hashed fields when it is given an id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, cast

from croniter import croniter
from croniter.croniter import EXPRESSIONS, CroniterError  # type: ignore[attr-defined]

from schemas.errors import InvalidSchedule

MAX_LENGTH = 256
FIELD_NAMES = ("minute", "hour", "day of month", "month", "day of week")
MINUTE, HOUR, DAY, MONTH, WEEKDAY = range(5)
BOUNDS = croniter.RANGES[:5]
NAMES = cast("tuple[dict[str, int | str], ...]", croniter.ALPHACONV)
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# `H` alone as a day of month stays in 1-28, so that a hashed monthly job runs in every month (as in Jenkins).
LAST_DAY_OF_EVERY_MONTH = 28

_RANGE = re.compile(r"(?P<low>\*|[0-9]+|[a-z]{3})(?:-(?P<high>[0-9]+|[a-z]+))?(?:/(?P<step>[0-9]+))?")
_HASH = re.compile(r"h(?:\((?P<low>[0-9]+)-(?P<high>[0-9]+)\))?(?:/(?P<step>[0-9]+))?")
_NTH = re.compile(r"(?P<days>(?:[0-9]+|[a-z]{3})(?:-(?:[0-9]+|[a-z]{3}))?)#(?P<nth>[0-9]+)")
_LAST = re.compile(r"l(?P<day>[0-9]+|[a-z]{3})")
_USES_HASH = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Days:
    """Which days: the day-of-month, month and day-of-week fields together. Sunday is 0.

    by_day, by_weekday: whether the field restricts at all, that is, is anything but exactly `*` or `?`.
    Both restricted means either may match (DESIGN.md, Time).
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
        minutes=_values(MINUTE, minute.split(","), key),
        hours=_values(HOUR, hour.split(","), key),
        days=Days(
            days=_values(DAY, day_terms, key),
            last_day=last_day,
            months=_values(MONTH, month.split(","), key),
            weekdays=_values(WEEKDAY, weekday_terms, key),
            nth_weekdays=nth,
            last_weekdays=last,
            by_day=day not in ("*", "?"),
            by_weekday=weekday not in ("*", "?"),
        ),
    )


def _split(expr: str) -> list[str]:
    """The five fields in lower case, after everything that can be said about the line as a whole."""
    if len(expr) > MAX_LENGTH:
        _refuse(f"the expression is longer than {MAX_LENGTH} characters")
    if "\n" in expr or "\r" in expr:
        _refuse("the expression holds a line break", "give one expression on one line")
    if not expr.isascii():
        _refuse("the expression holds a character that is not ASCII", "use the digits 0-9 and plain spaces")
    if not expr.replace("\t", " ").isprintable():
        _refuse("the expression holds a control character")
    text = expr.strip().lower()
    if not text:
        _refuse("the expression is empty", "for example '0 9 * * MON-FRI'")
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
        _refuse("@reboot is no time", "for a single run use runAt or delaySeconds")
    remedies = {
        "@every": "for an interval use everySeconds",
        "@once": "for a single run use runAt or delaySeconds",
        "@quarterly": "write 0 0 1 */3 *",
    }
    _refuse(f"unknown alias {alias!r}", remedies.get(alias, f"use {', '.join(ALIASES)}"))


def _refuse_field_count(text: str, count: int) -> NoReturn:
    if "tz=" in text:
        remedy = "the time zone is a field of its own: zone"
    elif count > len(FIELD_NAMES):
        remedy = "seconds and years are not supported: for less than a minute use everySeconds"
    else:
        remedy = "for an interval use everySeconds"
    _refuse(f"a cron expression has 5 fields ({', '.join(FIELD_NAMES)}), this one has {count}", remedy)


def _refuse(message: str, remedy: str = "") -> NoReturn:
    raise InvalidSchedule("cron", message, remedy)


def _refuse_term(index: int, term: str, message: str, remedy: str = "") -> NoReturn:
    _refuse(f"{FIELD_NAMES[index]}: {term!r} {message}", remedy)


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
                _refuse_term(WEEKDAY, term, "asks for a week that no month has", "use #1 to #5")
            nth_weekdays |= {(day, which) for day in _values(WEEKDAY, [nth["days"]], key)}
        elif last := _LAST.fullmatch(term):
            last_weekdays |= _values(WEEKDAY, [last["day"]], key)
        else:
            plain.append(term)
    return plain, frozenset(nth_weekdays), frozenset(last_weekdays)


def _values(index: int, terms: list[str], key: bytes) -> frozenset[int]:
    """The numbers that the terms of one field stand for."""
    plain = [piece for term in terms for piece in _rewrite(index, term, key)]
    return _expand(index, ",".join(plain)) if plain else frozenset()


def _rewrite(index: int, term: str, key: bytes) -> list[str]:
    """One term as the pieces that croniter reads correctly: `*`, `n`, or `a-b/step` with a < b."""
    if term in ("*", "?"):
        if term == "?" and index not in (DAY, WEEKDAY):
            _refuse_term(index, term, "stands only for a day", "use *")
        return ["*"]
    if hashed := _HASH.fullmatch(term):
        return _rewrite_hash(index, term, hashed, key)
    if ranged := _RANGE.fullmatch(term):
        return _rewrite_range(index, term, ranged)
    _refuse_term(index, term, "is not a value, a range, a step or a name", _hint(index, term))


def _hint(index: int, term: str) -> str:
    if term.startswith("r"):
        return "R would be another value on every node; H is the same one everywhere"
    if index == WEEKDAY and term.endswith("l"):
        return "for the last Friday write L5; SAT for Saturday" if len(term) > 1 else "write SAT, or L6"
    if index == DAY and "w" in term:
        return "the nearest weekday (W) is not supported"
    if term.startswith("/"):
        return f"for every n-th write *{term}"
    if not term:
        return "a comma stands between two values, without spaces"
    if index in (MONTH, WEEKDAY):
        return f"names have three English letters, such as {'JAN' if index == MONTH else 'MON'}"
    return "for example 5, 5-20, */10, 5,20 or H"


def _rewrite_hash(index: int, term: str, hashed: re.Match[str], key: bytes) -> list[str]:
    low, high = BOUNDS[index]
    if hashed["low"]:
        low, high = _number(index, term, hashed["low"]), _number(index, term, hashed["high"])
        if low > high:
            _refuse_term(index, term, "has its range the wrong way round")
    step = _step(index, term, hashed["step"])
    if hashed["step"]:
        return _pieces(_hash(index, low, min(low + step - 1, high), key), high, step)
    value = _hash(index, low, high, key)
    if index == DAY and not hashed["low"] and value > LAST_DAY_OF_EVERY_MONTH:
        value -= LAST_DAY_OF_EVERY_MONTH
    return [str(value)]


def _rewrite_range(index: int, term: str, ranged: re.Match[str]) -> list[str]:
    first, last = BOUNDS[index]
    step = _step(index, term, ranged["step"])
    if ranged["low"] == "*":
        if ranged["high"]:
            _refuse_term(index, term, "has no beginning", "use * alone or a range of two values")
        return _pieces(first, last, step)
    low = _number(index, term, ranged["low"])
    if ranged["high"] is None:
        low = low % 7 if index == WEEKDAY else low
        return _pieces(low, last if ranged["step"] else low, step)
    high = last if (index, ranged["high"]) == (DAY, "l") else _number(index, term, ranged["high"])
    if index == WEEKDAY:
        return _rewrite_weekdays(low, high, step)
    return _pieces(low, high, step) if low <= high else _wrapped(index, low, high, step)


def _rewrite_weekdays(low: int, high: int, step: int) -> list[str]:
    """A range of weekdays, in which Sunday may be the 0 at the beginning or the 7 at the end."""
    if low == high:
        return [str(low % 7)]
    if high == 7:
        return [str(day % 7) for day in range(low, 8, step)]
    low %= 7
    return _pieces(low, high, step) if low <= high else _wrapped(WEEKDAY, low, high, step)


def _wrapped(index: int, low: int, high: int, step: int) -> list[str]:
    """`FRI-MON`, `22-2`: up to the end of the field and on from its beginning, the step counted through."""
    first, last = BOUNDS[index]
    over = first + (low - last - 1) % step
    return _pieces(low, last, step) + (_pieces(over, high, step) if over <= high else [])


def _pieces(low: int, high: int, step: int) -> list[str]:
    """A plain range for croniter, which takes `n-n` for the whole cycle and so must not see one."""
    return [f"{low}-{high}/{step}"] if low + step <= high else [str(low)]


def _number(index: int, term: str, text: str) -> int:
    """A number or a name of this field, within its bounds; a Sunday may come out as 7."""
    value = int(text) if text.isdigit() else NAMES[index].get(text)
    if not isinstance(value, int):
        _refuse_term(index, term, "is not a value, a range, a step or a name", _hint(index, term))
    low, high = (0, 7) if index == WEEKDAY else BOUNDS[index]
    if not low <= value <= high:
        _refuse_term(index, term, f"is out of range, {low} to {high}")
    return value


def _step(index: int, term: str, text: str | None) -> int:
    low, high = BOUNDS[index]
    step = 1 if text is None else int(text)
    if not 1 <= step <= high - low + 1:
        # A longer step would silently mean "once", as in the */90 that was to be every 90 minutes.
        _refuse_term(index, term, f"has a step out of range, 1 to {high - low + 1}", "or use everySeconds")
    return step


def _hash(index: int, low: int, high: int, key: bytes) -> int:
    return low if low == high else next(iter(_expand(index, f"h({low}-{high})", key)))


@lru_cache(maxsize=4096)
def _expand(index: int, text: str, key: bytes = b"") -> frozenset[int]:
    """Have croniter read one field that is already in the form it reads correctly."""
    fields = ["*"] * len(FIELD_NAMES)
    fields[index] = text
    try:
        expanded = croniter.expand(" ".join(fields), hash_id=key)[0][index]
    except CroniterError as error:
        raise InvalidSchedule("cron", f"{FIELD_NAMES[index]}: {text!r} is not acceptable") from error
    finally:
        EXPRESSIONS.clear()  # croniter keeps every expression and id it ever saw
    if expanded == ["*"]:
        low, high = BOUNDS[index]
        return frozenset(range(low, high + 1))
    return frozenset(int(value) for value in expanded)
