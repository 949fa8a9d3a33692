"""What a receiver's answer means for the run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import msgspec

from fencepost.errors import PermanentFailure, RetryLater
from fencepost.schedules.json_depth import is_too_deep

RETRIED = frozenset({408, 425, 429})  # and every 5xx: the receiver may think better of it
RETRY_AFTER_MAX_S = 86_400.0
_QUOTED_BYTES = 500


class Answer(NamedTuple):
    """headers: by their names in lower case. body: what was read of it; whole: whether that is all."""

    host: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool

    def __str__(self) -> str:
        said = "" if self._is_encoded else _printable(self.body[:_QUOTED_BYTES].decode(errors="replace")).strip()
        return f"HTTP {self.status} from {self.host}{f': {said}' if said else ''}"

    @property
    def _is_encoded(self) -> bool:
        """Nobody asked for it, and nothing is unpacked: what is small here may be vast there."""
        return self.headers.get("content-encoding", "identity").lower() != "identity"

    @property
    def json(self) -> msgspec.Raw | None:
        """The body, if it is JSON by its type and its looks, whole, and no deeper than a result may be."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not self.whole or self._is_encoded or not (kind == "application/json" or kind.endswith("+json")):
            return None
        try:
            msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        return None if is_too_deep(self.body.decode()) else msgspec.Raw(self.body.strip())


def result_of(answer: Answer, now: datetime) -> msgspec.Raw | None:
    """The run's result: of a 2xx the JSON body, or None. Raises RetryLater or PermanentFailure for every other."""
    if 200 <= answer.status < 300:
        return answer.json
    if answer.status in RETRIED or answer.status >= 500:
        raise RetryLater(retry_after_s(answer.headers.get("retry-after"), now), str(answer))
    raise PermanentFailure(str(answer))


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """A Retry-After, in seconds or as a date; at most a day. None, when it says nothing, leaves it to the server.

    So does one of now or before: the server's own delays grow, and attempts are not burnt in a second.
    """
    if header is None:
        return None
    seconds = float(header) if header.isascii() and header.isdigit() else _until(header, now)
    return min(seconds, RETRY_AFTER_MAX_S) if seconds > 0 else None


def _until(date: str, now: datetime) -> float:
    try:
        instant = parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    return (instant.replace(tzinfo=instant.tzinfo or UTC) - now).total_seconds()


def _printable(text: str) -> str:
    """Without what would speak to a terminal, or that the ledger's text cannot hold."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
