"""What a job is, as its creator says it. The server checks schedules in depth; here only their shape is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from fencepost.errors import InvalidInput
from fencepost.schedules.json_depth import MAX_DEPTH, is_too_deep

T = TypeVar("T")

PAYLOAD_MAX_BYTES = 64 * 1024

Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
Instant = Annotated[datetime, Meta(tz=True)]
DeclaredAs = Annotated[str, Meta(max_length=201, pattern=r"^[A-Za-z0-9_.:-]{1,100}/[A-Za-z0-9_.:-]{1,100}\Z")]
ConcurrencyKey = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!-~]+\Z")]
PositiveSeconds = Annotated[float, Meta(gt=0, le=366 * 86400)]
RetrySeconds = Annotated[float, Meta(ge=0.001, le=366 * 86400)]


class Schedule(Struct, rename="camel", kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a job fires. Exactly one of cron, every_seconds, run_at and delay_seconds is set.

    Use `cron`, `every`, `at` and `after` of this module to make one.
    """

    cron: str | None = None
    zone: str | None = None
    every_seconds: Annotated[int, Meta(gt=0)] | None = None
    anchor: Instant | None = None
    run_at: Instant | None = None
    delay_seconds: Annotated[float, Meta(ge=0)] | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    exclude_dates: Sequence[str] = ()
    jitter_seconds: Annotated[float, Meta(ge=0)] | None = None


def cron(expression: str, zone: str | None = None) -> Schedule:
    """By five cron fields (or an alias such as @daily), read in an IANA zone; UTC unless told."""
    return Schedule(cron=expression, zone=zone)


def every(seconds: int, *, anchor: datetime | None = None) -> Schedule:
    """Every so many seconds, counted from `anchor`, or from the creation."""
    return Schedule(every_seconds=seconds, anchor=anchor)


def at(instant: datetime) -> Schedule:
    """Once, at an aware instant."""
    return Schedule(run_at=instant)


def after(seconds: float) -> Schedule:
    """Once, so many seconds after the command was issued."""
    return Schedule(delay_seconds=seconds)


class JobSpec(Struct, rename="camel", kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job's definition. payload: any JSON value of at most 64 KiB, handed to the handler as it is.

    declared_as: "set/name" of a job that a file declares, see `fencepost.declarations`.
    """

    queue: Name
    schedule: Schedule
    lane: Literal["high", "normal", "low"] = "normal"
    name: Annotated[str, Meta(max_length=200)] | None = None
    payload: Any = None
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    timeout_seconds: PositiveSeconds | None = None
    catch_up: Literal["latest", "all", "none"] = "latest"
    overlap: Literal["allow", "skip", "replace"] = "allow"
    start_deadline_seconds: PositiveSeconds | None = None
    retry_backoff: Literal["exponential", "linear", "fixed"] = "exponential"
    retry_base_seconds: RetrySeconds = 1.0
    retry_max_seconds: RetrySeconds = 600.0
    catch_up_limit: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    declared_as: DeclaredAs | None = None
    concurrency_key: ConcurrencyKey | None = None


_KINDS = ("cron", "everySeconds", "runAt", "delaySeconds")


def spec_fields(spec: JobSpec) -> dict[str, Any]:
    """The spec in its JSON form (camelCase, instants as text). Raises InvalidInput naming the field.

    Structs check nothing when they are made in Python, so they are checked here, once, on their way out.
    """
    if spec.payload is not None:
        payload_text(spec.payload)
    fields: dict[str, Any] = _converting(msgspec.to_builtins, spec)
    convert(fields, JobSpec)
    _check_kind(fields["schedule"])
    return fields


def schedule_fields(schedule: Schedule) -> dict[str, Any]:
    """The schedule in its JSON form, as spec_fields makes it. Raises InvalidInput naming the field."""
    fields: dict[str, Any] = _converting(msgspec.to_builtins, schedule)
    convert(fields, Schedule)
    _check_kind(fields)
    return fields


def _check_kind(schedule: Mapping[str, Any]) -> None:
    chosen = [kind for kind in _KINDS if kind in schedule]
    if len(chosen) != 1:
        given = " and ".join(chosen) or "none"
        raise InvalidInput(f"exactly one of {', '.join(_KINDS)} is needed, not {given}", field="schedule")


def payload_text(payload: Any) -> str:
    """A payload as JSON text. Raises InvalidInput when it is none, or too large or deep."""
    text: bytes = _converting(msgspec.json.encode, payload, field="payload")
    if len(text) > PAYLOAD_MAX_BYTES:
        raise InvalidInput(f"{len(text)} bytes are more than {PAYLOAD_MAX_BYTES}", field="payload")
    if is_too_deep(text.decode()):
        raise InvalidInput(f"it is nested deeper than {MAX_DEPTH} levels", field="payload")
    return text.decode()


def instant_text(instant: datetime, field: str) -> str:
    """An instant in RFC 3339, UTC. Raises InvalidInput for one without a zone."""
    if instant.tzinfo is None:
        raise InvalidInput(f"{instant.isoformat()} has no zone", field=field)
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_spec(fields: Any) -> JobSpec:
    """A spec from its JSON form. Raises InvalidInput naming the field."""
    return convert(fields, JobSpec)


def convert(fields: Any, kind: type[T]) -> T:
    """`fields` as a `kind`. Raises InvalidInput with the field's dotted JSON name."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidInput(message, field=path.strip("`.") or None) from error


def _converting(encode: Any, value: Any, field: str | None = None) -> Any:
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"no JSON: {error}", field=field) from error
