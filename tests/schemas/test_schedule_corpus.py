"""Schedules as people write them: 3,060 lines from public repositories, several dialects among them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from bench.next_fire import CORPUS
from schemas.errors import InvalidSchedule
from schemas.schedule import parse_schedule

# In five-field lines of the corpus, what is right to refuse.
NOT_OURS = re.compile(r"can never fire|unknown alias|@reboot|three English letters|out of range|for example")


def lines() -> Iterator[tuple[str, str | None]]:
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        yield entry["expr"], entry["zone"]


def refusal_of(expr: str, zone: str | None) -> InvalidSchedule | None:
    try:
        parse_schedule({"cron": expr, "zone": zone}, job_id="job")
    except InvalidSchedule as refusal:
        return refusal
    return None


def test_every_line_is_accepted_or_refused_with_a_reason() -> None:
    refusals = [(expr, refusal) for expr, zone in lines() if (refusal := refusal_of(expr, zone))]
    assert len(list(lines())) - len(refusals) == 2812
    for expr, refusal in refusals:
        assert refusal.field == "cron"
        has_five_fields = len(expr.split()) == 5 or expr.startswith("@")
        wanted = NOT_OURS if has_five_fields else re.compile("5 fields")
        assert wanted.search(refusal.message), (expr, refusal.message)
