"""What `why` says of runs that went through faults, compared with what the events topic and the takeovers tell of them.

The lateness is computed here from the topic alone: the server's own account of it must be the same to the microsecond.
Its causes must be those that the faults can have had, in the times in which they can have had them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

import httpx

from schemas.ids import partition_of_run
from tests.chaos.history import TopicEvent
from tests.chaos.ownerless import Tenures

ASKED_AT_ONCE = 8
# Of the last sign of an owner before its end: some 3 s, and what a noisy machine makes of it.
SIGN_AGE_MAX = timedelta(seconds=30)
_MICROSECOND = timedelta(microseconds=1)
_NOBODY = Tenures([], [])


class Explanations(NamedTuple):
    """wrong: what does not add up, or is blamed on the wrong. late_ms: the lateness of all runs by its cause."""

    runs: int
    wrong: list[str]
    late_ms: Mapping[str, float]

    def __str__(self) -> str:
        causes = ", ".join(f"{cause} {ms / 1000:.1f} s" for cause, ms in sorted(self.late_ms.items()))
        return f"{self.runs} runs explained, late by {causes or 'nothing'}"


class Beginning(NamedTuple):
    """Of a run that was leased: the events that made it and that leased it first."""

    made: TopicEvent
    lease: TopicEvent


def beginnings(events: Iterable[TopicEvent]) -> dict[str, Beginning]:
    """Of every run that was ever leased."""
    made, leased = dict[str, TopicEvent](), dict[str, TopicEvent]()
    for event in sorted(events, key=lambda event: event.version):
        made.setdefault(event.run_id, event)
        if event.type == "run_leased":
            leased.setdefault(event.run_id, event)
    return {run_id: Beginning(made[run_id], lease) for run_id, lease in leased.items()}


def explain(url: str, token: str, runs: Mapping[str, Beginning], tenures: Mapping[int, Tenures]) -> Explanations:
    """Ask the API about each of these runs. tenures: of the partitions."""
    return asyncio.run(_explain(url, token, runs, tenures))


async def _explain(url: str, token: str, runs: Mapping[str, Beginning], tenures: Mapping[int, Tenures]) -> Explanations:
    wrong: list[str] = []
    late_ms: Counter[str] = Counter()
    left = iter(runs.items())

    async def ask(client: httpx.AsyncClient) -> None:
        for run_id, beginning in left:  # shared: each run is asked about once
            response = await client.get(f"/v1/runs/{run_id}/why")
            if not response.is_success:
                wrong.append(f"{run_id}: {response.status_code} {response.text}")
                continue
            answer = response.json()
            partition = tenures.get(partition_of_run(UUID(run_id)), _NOBODY)
            problems = [*problems_of(answer, beginning.lease), *misblamed(answer, beginning.made.at, partition)]
            wrong.extend(f"{run_id}: {problem}" for problem in problems)
            for each in answer["intervals"]:
                late_ms[each["cause"]] += each["ms"] if each["late"] else 0

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False) as client:
        await asyncio.gather(*(ask(client) for _ in range(ASKED_AT_ONCE)))
    return Explanations(len(runs), wrong, {cause: ms for cause, ms in late_ms.items() if ms})


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


def misblamed(answer: Mapping[str, Any], made_at: datetime, partition: Tenures) -> Iterator[str]:
    """Causes of lateness that cannot be: in these trials nothing is paused, and no job keeps another run of its own.

    What was late before the run was made is its owner's, who had not decided it. While its partition had no owner that
    is the cause; and an owner that is taken over from is blamed for no more than the time since it gave its last sign.
    """
    for each in answer["intervals"]:
        if not each["late"]:
            continue
        since, until, cause = _instant(each["from"]), _instant(each["to"]), each["cause"]
        if cause == "not_decided":
            if until > made_at:
                yield f"not decided until {until}, though it was made at {made_at}"
        elif cause == "owner_taking_over":
            takeover = next((at for at in partition.takeovers if at >= until), None)
            if takeover is None:
                yield f"a takeover is blamed for {since} to {until}, and there was none after it"
            elif since < (sign := partition.last_sign_before(takeover)) - SIGN_AGE_MAX:
                yield f"a takeover is blamed from {since} on, though there was an owner until {sign}"
        elif cause == "no_worker_asked":
            for gap in partition.ownerless:
                if since < gap.until and until > gap.since:
                    yield f"workers are blamed for {since} to {until}, though nobody owned it from {gap.since} on"
        else:
            yield f"{cause} from {since} to {until}, which nobody has done"


def _us(ms: float) -> int:
    return round(ms * 1000)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)
