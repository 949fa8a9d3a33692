"""One question about coming fires, as `fencepost next` is asked it by its options or by a line of JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta, Struct, field

from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule_preview import SchedulePreview, instant_from

MOST_FIRES = 100_000
USUAL_FIRES = 5

_WRONG_FIELD = re.compile(r"(?P<message>.*) - at `\$[.]?(?P<field>.*)`", re.DOTALL)
_NAMED_FIELD = re.compile(r"Object (missing required|contains unknown) field `(?P<field>.*)`", re.DOTALL)


class Refusal(Struct):
    """Why there is no answer. field: the name in the line of JSON, dotted; None when the line is no JSON object."""

    error: str
    field: str | None


class Refused(Exception):
    def __init__(self, error: str, field: str | None) -> None:
        super().__init__(error)
        self.refusal = Refusal(error, field)


class FireRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """expr: a cron expression, or a schedule in its JSON form. start: RFC 3339, now unless given.

    job_id: what `H` hashes; a UUID as a rule, in any case the text itself.
    """

    expr: str | dict[str, Any]
    zone: str | None = None
    start: str | None = field(name="from", default=None)
    count: Annotated[int, Meta(ge=1, le=MOST_FIRES)] | None = None
    job_id: str | None = field(name="jobId", default=None)

    def answer(self) -> tuple[SchedulePreview, datetime]:
        """The schedule, and the instant after which its fires are wanted. Raises Refused."""
        try:
            after = instant_from(self.start) if self.start is not None else _this_second()
            return SchedulePreview(self._form(), job_id=self._job_key()), after
        except InvalidSchedule as error:
            raise Refused(error.message, self._field(error.field)) from None

    def fires(self) -> Iterator[datetime]:
        """The first `count` fires after the instant. Raises Refused, at once."""
        preview, after = self.answer()
        return preview.fires(after, self.count or USUAL_FIRES)

    def _form(self) -> dict[str, Any]:
        if isinstance(self.expr, str):
            return {"cron": self.expr, "zone": self.zone}
        if self.zone is not None:
            raise Refused("the zone of a schedule stands in it", "zone")
        return self.expr

    def _job_key(self) -> str | None:
        if self.job_id is None:
            return None
        if not self.job_id.isascii():
            raise Refused("a job id is ASCII text", "jobId")
        return _canonical(self.job_id)

    def _field(self, name: str | None) -> str | None:
        """The field of a schedule by its name in the request."""
        if isinstance(self.expr, str):
            return "expr" if name == "cron" else name
        if name == "from":
            return name
        return "expr" if name in (None, "schedule") else f"expr.{name}"


_decode = msgspec.json.Decoder(FireRequest).decode


def answer_line(line: bytes) -> bytes:
    """A line of JSON: the fires, or the reason why there are none."""
    try:
        return fires_json(_read(line).fires())
    except Refused as refused:
        return msgspec.json.encode(refused.refusal)


def fires_json(fires: Iterable[datetime]) -> bytes:
    """{"fires": […]}; the instants in UTC with Z, microseconds only where there are any."""
    return msgspec.json.encode({"fires": list(fires)})


def _read(line: bytes) -> FireRequest:
    try:
        return _decode(line)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the line is no JSON: {error}", None) from None


def _refused(message: str) -> Refused:
    """msgspec's complaint, with the field that it is about."""
    if named := _NAMED_FIELD.fullmatch(message):
        return Refused(message, named["field"])
    if wrong := _WRONG_FIELD.fullmatch(message):
        return Refused(wrong["message"], wrong["field"] or None)
    return Refused(message, None)


def _canonical(job_id: str) -> str:
    """A UUID in lower case, as the server hashes it; any other text as it is."""
    try:
        canonical = str(UUID(job_id))
    except ValueError:
        return job_id
    return canonical if canonical == job_id.lower() else job_id


def _this_second() -> datetime:
    """Now, in whole seconds: fires are, so none is between the two."""
    return datetime.now(UTC).replace(microsecond=0)
