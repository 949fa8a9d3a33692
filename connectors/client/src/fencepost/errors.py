"""Every error that the client raises, grouped by what the one who catches it should do.

    FencepostError
    ├── TryAgain                nothing is wrong with the request: repeat it later
    │   ├── Unreachable         no answer came: the server, or the way to it, is away
    │   │   └── KafkaUnreachable   the same, of the broker
    │   ├── Unavailable         502, 503, 504: the server, or the ledger, Kafka or the history behind it, is away
    │   └── Throttled           429: slow down
    ├── Refused                 the server understood and said no: repeating it changes nothing
    │   ├── Unauthorized        401 and 403: get another token
    │   ├── NotFound            404: the object does not exist, or is another tenant's
    │   ├── Conflict            409: another definition under the same idempotency key, …
    │   │   └── LeaseLost       409 of a lease call: the run is no longer yours, drop what you did
    │   └── Invalid             400, 413, 415, 422: mend the request; `field` names the place
    ├── InvalidInput            the same, found before anything was sent
    ├── TopicMissing            start the server, or correct the topic prefix or the number of partitions
    └── ServerFault             report it: an answer that the contract does not know

`PermanentFailure`, `RetryLater` and `Snooze` are raised by handlers, never by the client.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

RETRY_MAX_S = 366 * 86_400


class FieldProblem(msgspec.Struct, frozen=True):
    """One of several things that are wrong with a request. field: the JSON name, dotted."""

    field: str
    detail: str


class Problem(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A problem document (RFC 9457), as the server sends it."""

    status: int = 0
    title: str = ""
    detail: str = ""
    type: str = "about:blank"
    field: str | None = None
    retry_after_seconds: float | None = None
    errors: Sequence[FieldProblem] | None = None

    def __str__(self) -> str:
        place = f"{self.field}: " if self.field else ""
        return f"{self.status} {place}{self.detail or self.title}"


class FencepostError(Exception):
    """The root."""


class TryAgain(FencepostError):
    """Repeat the call later. retry_after_s: when, if the server said so."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unreachable(TryAgain):
    """No answer. The call may have taken effect unless `sent` is false."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class KafkaUnreachable(Unreachable):
    """The broker did not answer, or did not take these commands in time. job_ids: whose commands may be lost."""

    def __init__(self, message: str, *, sent: bool = True, job_ids: Sequence[object] = ()) -> None:
        super().__init__(message, sent=sent)
        self.job_ids = job_ids


class Unavailable(TryAgain):
    """Something answered, but what should carry the call out is away."""


class Throttled(TryAgain):
    """Too many calls, or too much pending, for this tenant."""


class Refused(FencepostError):
    """The server said no. `problem` is its document; status, field and detail are those of it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.status = problem.status
        self.field = problem.field
        self.detail = problem.detail


class Unauthorized(Refused):
    """The token is missing, unknown, revoked, of another role or not meant for this queue."""


class NotFound(Refused):
    """There is no such thing for this tenant."""


class Conflict(Refused):
    """The request contradicts what is there."""


class LeaseLost(Conflict):
    """The lease ended, or another attempt has the run."""


class Invalid(Refused):
    """The request cannot be right."""


class InvalidInput(FencepostError):
    """What was handed in cannot be right, so it was not sent. field: the JSON name, dotted, or None."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class TopicMissing(FencepostError):
    """The commands topic is not there, or is not the one the producer was told of."""


class ServerFault(FencepostError):
    """The server, or something that answers in its place, does not keep the contract."""


class PermanentFailure(Exception):
    """Raise it in a handler: this run fails, and trying again would not help."""


class RetryLater(Exception):
    """Raise it in a handler: this attempt fails, and the next comes after `seconds`; None leaves that to the server."""

    def __init__(self, seconds: float | None = None, reason: str = "the handler asked for a later retry") -> None:
        if seconds is not None and not 0 <= seconds <= RETRY_MAX_S:
            raise ValueError(f"the next attempt can come after 0 to {RETRY_MAX_S} seconds, not {seconds}")
        super().__init__(reason)
        self.seconds = seconds


class Snooze(Exception):
    """Raise it in a handler: nothing has failed, but the run shall come again after `seconds`, and no attempt is
    charged for this one."""

    def __init__(self, seconds: float) -> None:
        if not 0 <= seconds <= RETRY_MAX_S:
            raise ValueError(f"a run can be snoozed for 0 to {RETRY_MAX_S} seconds, not {seconds}")
        super().__init__(f"snoozed for {seconds:g} s")
        self.seconds = seconds


_REFUSALS: dict[int, type[Refused]] = {
    400: Invalid,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


def error_of(problem: Problem) -> FencepostError:
    """The exception that a problem document stands for."""
    if problem.status == 429:
        return Throttled(str(problem), retry_after_s=problem.retry_after_seconds)
    if problem.status in (502, 503, 504):
        return Unavailable(str(problem), retry_after_s=problem.retry_after_seconds)
    if 400 <= problem.status < 500:
        return _REFUSALS.get(problem.status, Refused)(problem)
    return ServerFault(str(problem))
