"""What `why` says of runs that went through faults, compared with what the events topic tells of them.

The lateness is computed here from the topic alone: the server's own account of it must be the same to the microsecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import httpx

from tests.chaos.history import TopicEvent

_MICROSECOND = timedelta(microseconds=1)


class Explanations(NamedTuple):
    """wrong: what does not add up. late_ms: the lateness of all runs by its cause."""

    runs: int
    wrong: list[str]
    late_ms: Mapping[str, float]

    def __str__(self) -> str:
        causes = ", ".join(f"{cause} {ms / 1000:.1f} s" for cause, ms in sorted(self.late_ms.items()))
        return f"{self.runs} runs explained, late by {causes or 'nothing'}"


def first_leases(events: Iterable[TopicEvent]) -> dict[str, TopicEvent]:
    """Of every run that was ever leased."""
    first: dict[str, TopicEvent] = {}
    for event in events:
        known = first.get(event.run_id)
        if event.type == "run_leased" and (known is None or event.version < known.version):
            first[event.run_id] = event
    return first


def explain(url: str, token: str, leases: Mapping[str, TopicEvent]) -> Explanations:
    """Ask the API about each of these runs, whose first leases are known."""
    wrong: list[str] = []
    late_ms: Counter[str] = Counter()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as client:
        for run_id, lease in leases.items():
            response = client.get(f"/v1/runs/{run_id}/why")
            if not response.is_success:
                wrong.append(f"{run_id}: {response.status_code} {response.text}")
                continue
            answer = response.json()
            wrong += [f"{run_id}: {problem}" for problem in problems_of(answer, lease)]
            for each in answer["intervals"]:
                late_ms[each["cause"]] += each["ms"] if each["late"] else 0
    return Explanations(len(leases), wrong, {cause: ms for cause, ms in late_ms.items() if ms})


def problems_of(answer: Mapping[str, Any], lease: TopicEvent) -> list[str]:
    """What of an explanation contradicts itself or the run's first lease."""
    assert lease.due_at is not None
    intervals = answer["intervals"]
    lateness_us = max(0, (lease.at - lease.due_at) // _MICROSECOND)
    sum_us = sum(round(each["ms"] * 1000) for each in intervals if each["late"])
    bounds_us = [(_instant(each["to"]) - _instant(each["from"])) // _MICROSECOND for each in intervals]
    checks = {
        "the history was behind": not answer["incomplete"],
        f"latenessMs is {answer['latenessMs']}, not {lateness_us / 1000}": _us(answer["latenessMs"]) == lateness_us,
        f"the late intervals sum up to {sum_us} µs, not to {lateness_us}": sum_us == lateness_us,
        "an interval is not as long as it says": bounds_us == [_us(each["ms"]) for each in intervals],
        "there is a gap": all(each["to"] == following["from"] for each, following in pairwise(intervals)),
        "the lateness does not begin when it was due": (
            not lateness_us or _instant(intervals[0]["from"]) == lease.due_at
        ),
    }
    return [problem for problem, right in checks.items() if not right]


def _us(ms: float) -> int:
    return round(ms * 1000)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)
