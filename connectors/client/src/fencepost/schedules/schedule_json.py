# Generated from schemas/schedule_json.py by connectors/client/generate_copies.py (make copies): change it there.
"""The JSON form of a schedule, as the HTTP API, jobs.yaml and the Avro record share it.

    {"cron": "0 9 * * MON-FRI", "zone": "America/New_York"}
    {"everySeconds": 300, "anchor": "2026-01-01T00:00:00Z"}
    {"runAt": "2026-01-01T00:00:00Z"} or {"runAt": "2026-01-01T09:00", "zone": "Europe/Paris"}
    {"delaySeconds": 1200}

cron and everySeconds also take startAt, endAt, excludeDates and jitterSeconds. A field that is null is
absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from difflib import get_close_matches
from typing import Any, NoReturn
from uuid import UUID

from fencepost.schedules.cron import cron_expression
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule_kinds import At, Cron, Delay, Every, Recurring, Schedule
from fencepost.schedules.zone_rule import instant_of
from fencepost.schedules.zones import zone

KINDS = ("cron", "everySeconds", "runAt", "delaySeconds")
LONGEST_S = 100 * 366 * 86_400
LONGEST_JITTER_S = 86_400
MOST_EXCLUDED_DATES = 1_000

_RECURRING = ("startAt", "endAt", "excludeDates", "jitterSeconds")
_FIELDS = {
    "cron": ("zone", *_RECURRING),
    "everySeconds": ("anchor", *_RECURRING),
    "runAt": ("zone",),
    "delaySeconds": (),
}
_LOCAL = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
_LOCAL_TIME = re.compile(_LOCAL)
_INSTANT = re.compile(_LOCAL + r"(Z|[+-][0-9]{2}:[0-9]{2})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ERA = (datetime(1970, 1, 1, tzinfo=UTC), datetime(2500, 1, 1, tzinfo=UTC))


def read_schedule(obj: Mapping[str, Any], job_id: UUID | str | None) -> Schedule:
    """The schedule that the JSON form stands for. Raises InvalidSchedule naming the field and the remedy."""
    if not isinstance(obj, Mapping):
        raise InvalidSchedule("schedule", "a schedule is an object", f"with one of {', '.join(KINDS)}")
    fields = {name: value for name, value in obj.items() if value is not None}
    kind = _kind(fields)
    _refuse_unknown(fields, kind)
    match kind:
        case "cron":
            return _read_cron(fields, job_id)
        case "everySeconds":
            return _read_every(fields)
        case "runAt":
            return At(_run_at(fields))
        case _:
            return Delay(_seconds(fields, "delaySeconds", 0, LONGEST_S))


def to_json(schedule: Schedule) -> dict[str, Any]:
    """The JSON form, from which read_schedule makes an equal schedule; instants in UTC."""
    match schedule:
        case Cron():
            return {"cron": schedule.expr, "zone": schedule.zone, **_recurring_json(schedule)}
        case Every():
            anchor = {"anchor": instant_text(schedule.anchor)} if schedule.anchor else {}
            return {"everySeconds": schedule.every_seconds, **anchor, **_recurring_json(schedule)}
        case At():
            return {"runAt": instant_text(schedule.run_at)}
        case Delay():
            return {"delaySeconds": schedule.delay_seconds}


def instant_text(instant: datetime) -> str:
    """RFC 3339 in UTC, ending in Z; fractions only when there are any."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _kind(fields: Mapping[str, Any]) -> str:
    kinds = [kind for kind in KINDS if kind in fields]
    if len(kinds) == 1:
        return kinds[0]
    found = f"has {' and '.join(kinds)}" if kinds else "has none of them"
    raise InvalidSchedule(
        kinds[-1] if kinds else "schedule",
        f"a schedule has exactly one of {', '.join(KINDS)}; this one {found}",
        "for several, create several jobs" if kinds else "",
    )


def _refuse_unknown(fields: Mapping[str, Any], kind: str) -> None:
    known = (kind, *_FIELDS[kind])
    for name in fields:
        if name not in known:
            near = get_close_matches(str(name)[:64], known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
            raise InvalidSchedule(str(name)[:64], f"a schedule with {kind} has no such field", remedy)


def _read_cron(fields: Mapping[str, Any], job_id: UUID | str | None) -> Cron:
    expr, zone_name = _text(fields, "cron"), _zone(fields)
    cron_expression(expr, str(job_id or ""))
    return Cron(expr=expr.strip(), zone=zone_name, **_recurring(fields))


def _read_every(fields: Mapping[str, Any]) -> Every:
    every = fields["everySeconds"]
    if type(every) is not int or not 1 <= every <= LONGEST_S:
        _refuse("everySeconds", f"must be a whole number from 1 to {LONGEST_S}")
    common = _recurring(fields)
    if common["jitter_seconds"] >= every:
        _refuse("jitterSeconds", "must be shorter than everySeconds, or runs overtake each other")
    return Every(every_seconds=every, anchor=_optional_instant(fields, "anchor"), **common)


def _recurring(fields: Mapping[str, Any]) -> dict[str, Any]:
    start_at, end_at = _optional_instant(fields, "startAt"), _optional_instant(fields, "endAt")
    if start_at and end_at and end_at <= start_at:
        _refuse("endAt", "must be later than startAt")
    return {
        "start_at": start_at,
        "end_at": end_at,
        "exclude_dates": _dates(fields.get("excludeDates", ())),
        "jitter_seconds": _seconds({"jitterSeconds": 0, **fields}, "jitterSeconds", 0, LONGEST_JITTER_S),
    }


def _recurring_json(schedule: Recurring) -> dict[str, Any]:
    everything = {
        "startAt": schedule.start_at and instant_text(schedule.start_at),
        "endAt": schedule.end_at and instant_text(schedule.end_at),
        "excludeDates": [day.isoformat() for day in schedule.exclude_dates],
        "jitterSeconds": schedule.jitter_seconds,
    }
    return {name: value for name, value in everything.items() if value}


def _zone(fields: Mapping[str, Any]) -> str:
    name = _text(fields, "zone") if "zone" in fields else "UTC"
    zone(name)
    return name


def _run_at(fields: Mapping[str, Any]) -> datetime:
    """An instant, or a local time and its zone: then the gap and fold rule of cron applies."""
    value = fields["runAt"]
    if "zone" not in fields:
        return _instant("runAt", value)
    zone_name = _zone(fields)
    if not isinstance(value, str) or not _LOCAL_TIME.fullmatch(value):
        _refuse("runAt", "with a zone it is a local time such as 2026-01-31T09:00", "leave out Z, or the zone")
    local = _parsed("runAt", value)
    _in_era("runAt", local.replace(tzinfo=UTC))
    return _in_era("runAt", instant_of(local, zone_name))


def _optional_instant(fields: Mapping[str, Any], name: str) -> datetime | None:
    return _instant(name, fields[name]) if name in fields else None


def _instant(name: str, value: Any) -> datetime:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            _refuse(name, "is a time without a zone", "give it in UTC")
        return _in_era(name, value.astimezone(UTC))
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        remedy = "or give zone beside it" if name == "runAt" else ""
        _refuse(name, "must be an instant such as 2026-01-31T09:00:00Z", remedy)
    try:
        return _in_era(name, _parsed(name, value).astimezone(UTC))
    except OverflowError:
        _refuse_era(name)


def _parsed(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidSchedule(name, f"{name} {text!r} is not in the calendar") from error


def _in_era(name: str, instant: datetime) -> datetime:
    if not _ERA[0] <= instant < _ERA[1]:
        _refuse_era(name)
    return instant


def _refuse_era(name: str) -> NoReturn:
    _refuse(name, f"must lie in the years {_ERA[0].year} to {_ERA[1].year - 1}")


def _dates(values: Any) -> tuple[date, ...]:
    if isinstance(values, str) or not isinstance(values, list | tuple) or len(values) > MOST_EXCLUDED_DATES:
        _refuse("excludeDates", f"must be a list of at most {MOST_EXCLUDED_DATES} dates")
    return tuple(sorted({_date(value) for value in values}))


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        _refuse("excludeDates", f"holds {str(value)[:64]!r}, which is not a date", "write 2026-12-25")
    return _parsed("excludeDates", value).date()


def _seconds(fields: Mapping[str, Any], name: str, low: int, high: int) -> float:
    value = fields[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        _refuse(name, f"must be a number of seconds from {low} to {high}")
    return float(value)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        _refuse(name, "must be a string")
    return value


def _refuse(name: str, message: str, remedy: str = "") -> NoReturn:
    raise InvalidSchedule(name, f"{name} {message}", remedy)
