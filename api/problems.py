"""Every error answer: a problem document (RFC 9457) that names the field, made here and nowhere else."""

from __future__ import annotations

import math
import re
from http import HTTPStatus

import msgspec

from schemas.errors import CommandRejected, EpochLost, InvalidSchedule, JobConflict, JobUnknown, TryAgain
from schemas.http import ProblemDocument, encode

Headers = list[tuple[bytes, bytes]]

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`( - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*?)`( - at `\$\.?(.*)`)?", re.DOTALL)
_WRONG_FIELD = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


class Problem(Exception):
    """Ends a call with an error answer. detail: one sentence, with the remedy when there is one."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s
        self.headers = headers or []

    def body(self) -> bytes:
        title = HTTPStatus(self.status).phrase
        return encode(
            ProblemDocument(title, self.status, self.detail, field=self.field, retry_after_seconds=self.retry_after_s)
        )

    def all_headers(self) -> Headers:
        headers = [(b"content-type", b"application/problem+json"), *self.headers]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(math.ceil(self.retry_after_s)).encode()))
        return headers


def not_found(what: str) -> Problem:
    """An object that does not exist, or is another tenant's: which of the two is nobody's business."""
    return Problem(404, f"no such {what}")


def invalid(field: str, detail: str) -> Problem:
    return Problem(422, detail, field=field)


def invalid_schedule(error: InvalidSchedule) -> Problem:
    """A 422 whose field stands in the body's `schedule`."""
    return invalid("schedule" if error.field in (None, "schedule") else f"schedule.{error.field}", error.message)


def problem_of(error: Exception) -> Problem | None:
    """The answer to an error of ours or of the JSON decoder; None for one that nobody foresaw."""
    match error:
        case Problem():
            return error
        case msgspec.ValidationError():
            return _invalid_body(str(error))
        case msgspec.DecodeError() | UnicodeDecodeError() | RecursionError():
            return Problem(400, f"the body is no JSON document: {error}")
        case JobUnknown():
            return not_found("job")
        case JobConflict():
            return Problem(409, error.message, field=error.field)
        case CommandRejected():
            return Problem(422, error.message, field=error.field)
        case TryAgain():
            return Problem(503, str(error), retry_after_s=error.retry_after_s)
        case EpochLost():
            return Problem(503, str(error), retry_after_s=1.0)
    return None


def _invalid_body(message: str) -> Problem:
    """A 422 from msgspec's "… - at `$.runs[1].leaseToken`", whose field is `runs.1.leaseToken`."""
    if found := _UNKNOWN_FIELD.fullmatch(message):
        return invalid(_dotted(found[3], found[1]), f"there is no field {found[1]} here")
    if found := _MISSING_FIELD.fullmatch(message):
        return invalid(_dotted(found[3], found[1]), f"{found[1]} is missing")
    if found := _WRONG_FIELD.fullmatch(message):
        return invalid(_dotted(found[2]), found[1])
    return Problem(422, message)


def _dotted(path: str | None, name: str | None = None) -> str:
    """`runs[1].leaseToken` as `runs.1.leaseToken`."""
    parts = [part for part in (re.sub(r"\[(.*?)\]", r".\1", path or ""), name) if part]
    return ".".join(parts)
