# Generated from schemas/cron_terms.py by connectors/client/generate_copies.py (make copies): change it there.
"""One field of a cron expression: its comma-separated terms become the numbers they stand for.

croniter turns names into numbers, hashes `H` and expands ranges and steps. Ours are the grammar with its
messages, and the rewriting of what croniter 5 reads wrongly before it sees it:

* `1-1`, `59/15`, `23-23/24`: a range of one value is that value, not the whole cycle;
* `22-4/3`: the step of a wrapping range goes on counting over the end of the field;
* `H(0-5)/10`, `H/60`: the hashed start stays inside its range.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NoReturn, cast

from croniter import croniter
from croniter.croniter import EXPRESSIONS, CroniterError  # type: ignore[attr-defined]

from fencepost.schedules.errors import InvalidSchedule

FIELD_NAMES = ("minute", "hour", "day of month", "month", "day of week")
MINUTE, HOUR, DAY, MONTH, WEEKDAY = range(5)
BOUNDS = croniter.RANGES[:5]
NAMES = cast("tuple[dict[str, int | str], ...]", croniter.ALPHACONV)
# `H` alone as a day of month stays in 1-28, so that a hashed monthly job runs in every month (as in Jenkins).
LAST_DAY_OF_EVERY_MONTH = 28

_RANGE = re.compile(r"(?P<low>\*|[0-9]+|[a-z]{3})(?:-(?P<high>[0-9]+|[a-z]+))?(?:/(?P<step>[0-9]+))?")
_HASH = re.compile(r"h(?:\((?P<low>[0-9]+)-(?P<high>[0-9]+)\))?(?:/(?P<step>[0-9]+))?")


def term_values(index: int, terms: list[str], key: bytes) -> frozenset[int]:
    """The numbers that the terms of one field stand for; `key` is what `H` hashes.

    Raises InvalidSchedule with field `cron`, naming the term and what to write instead.
    """
    plain = [piece for term in terms for piece in _rewrite(index, term, key)]
    return _expand(index, ",".join(plain)) if plain else frozenset()


def refuse(message: str, remedy: str = "") -> NoReturn:
    raise InvalidSchedule("cron", message, remedy)


def refuse_term(index: int, term: str, message: str, remedy: str = "") -> NoReturn:
    refuse(f"{FIELD_NAMES[index]}: {term!r} {message}", remedy)


def _rewrite(index: int, term: str, key: bytes) -> list[str]:
    """One term as the pieces that croniter reads correctly: `*`, `n`, or `a-b/step` with a < b."""
    if term in ("*", "?"):
        if term == "?" and index not in (DAY, WEEKDAY):
            refuse_term(index, term, "stands only for a day", "use *")
        return ["*"]
    if hashed := _HASH.fullmatch(term):
        return _rewrite_hash(index, term, hashed, key)
    if ranged := _RANGE.fullmatch(term):
        return _rewrite_range(index, term, ranged)
    refuse_term(index, term, "is not a value, a range, a step or a name", _hint(index, term))


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
            refuse_term(index, term, "has its range the wrong way round")
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
            refuse_term(index, term, "has no beginning", "use * alone or a range of two values")
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
        refuse_term(index, term, "is not a value, a range, a step or a name", _hint(index, term))
    low, high = (0, 7) if index == WEEKDAY else BOUNDS[index]
    if not low <= value <= high:
        refuse_term(index, term, f"is out of range, {low} to {high}")
    return value


def _step(index: int, term: str, text: str | None) -> int:
    low, high = BOUNDS[index]
    step = 1 if text is None else int(text)
    if not 1 <= step <= high - low + 1:
        # A longer step would silently mean "once", as in the */90 that was to be every 90 minutes.
        refuse_term(index, term, f"has a step out of range, 1 to {high - low + 1}", "or use everySeconds")
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
    if "*" in expanded:  # alone, or in a list
        low, high = BOUNDS[index]
        return frozenset(range(low, high + 1))
    return frozenset(int(value) for value in expanded)
