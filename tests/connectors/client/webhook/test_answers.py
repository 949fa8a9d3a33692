"""What a receiver's answer makes of the run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost import PermanentFailure, RetryLater
from fencepost.webhook.answers import Answer, result_of, retry_after_s

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
JSON = "application/json"


def said(status: int, body: bytes = b"", *, whole: bool = True, **headers: str) -> Answer:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer("hooks.example.com", status, fields, body, whole)


@pytest.mark.parametrize("kind", [JSON, "Application/JSON; charset=utf-8", "application/problem+json"])
def test_json_of_a_2xx_is_the_result_as_it_came(kind: str) -> None:
    body = b' {"n": 1E5, "text": "\\u00e4"}\n'
    assert result_of(said(201, body, content_type=kind), NOW) == msgspec.Raw(body.strip())


@pytest.mark.parametrize(
    "answer",
    [
        said(204),
        said(200, b"ok", content_type="text/plain"),
        said(200, b"{}"),
        said(200, b"{", content_type=JSON),
        said(200, b"", content_type=JSON),
        said(200, b'"\xff"', content_type=JSON),
        said(200, b"[" * 60_000, content_type=JSON),
        said(200, b"[1]", whole=False, content_type=JSON),
        said(200, b"[1]", content_type=JSON, content_encoding="gzip"),
    ],
    ids=str,
)
def test_a_2xx_without_whole_plain_json_completes_without_a_result(answer: Answer) -> None:
    assert result_of(answer, NOW) is None


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599])
def test_these_are_tried_again(status: int) -> None:
    with pytest.raises(RetryLater, match=f"HTTP {status} from hooks.example.com: busy"):
        result_of(said(status, b"busy"), NOW)


@pytest.mark.parametrize("status", [101, 300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 409, 410, 422, 451])
def test_these_are_final(status: int) -> None:
    with pytest.raises(PermanentFailure, match=f"HTTP {status} from hooks.example.com: no"):
        result_of(said(status, b"no"), NOW)


def test_the_reason_quotes_the_beginning_and_nothing_that_speaks_to_a_terminal() -> None:
    with pytest.raises(PermanentFailure) as caught:
        result_of(said(400, b"\x1b[31mno\x00\xff\n" + b"x" * 5000), NOW)
    reason = str(caught.value)
    assert reason.startswith("HTTP 400 from hooks.example.com: \ufffd[31mno\ufffd\ufffd\nxxx")
    assert len(reason) < 600


def test_what_is_packed_is_not_quoted() -> None:
    with pytest.raises(PermanentFailure, match=r"^HTTP 400 from hooks\.example\.com$"):
        result_of(said(400, b"\x1f\x8b", content_encoding="gzip"), NOW)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        ("86401", 86_400),
        ("9" * 400, 86_400),
        ("Sun, 01 Mar 2026 09:00:30 GMT", 30),
        ("Sunday, 01-Mar-26 09:00:30 GMT", 30),
        ("Sun Mar  1 09:00:30 2026", 30),
        ("Sun, 01 Mar 2027 09:00:30 GMT", 86_400),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_a_day_at_most(header: str, seconds: float) -> None:
    assert retry_after_s(header, NOW) == seconds
    with pytest.raises(RetryLater) as caught:
        result_of(said(429, retry_after=header), NOW)
    assert caught.value.seconds == seconds


@pytest.mark.parametrize(
    "header", [None, "", "0", "-1", "1.5", "soon", "١٢", "Sun, 01 Mar 2026 08:00:00 GMT", "1 " * 9]
)
def test_a_retry_after_that_says_nothing_leaves_the_delay_to_the_server(header: str | None) -> None:
    assert retry_after_s(header, NOW) is None


@settings(deadline=None)
@given(st.one_of(st.text(max_size=40), st.datetimes().map(lambda date: date.strftime("%a, %d %b %Y %H:%M:%S GMT"))))
def test_whatever_retry_after_says_the_delay_is_one_that_can_be_asked_for(header: str) -> None:
    seconds = retry_after_s(header, NOW)
    assert seconds is None or 0 < seconds <= timedelta(days=1).total_seconds()
