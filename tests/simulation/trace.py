"""A simulation for people: its faults, what was committed and what workers saw, in one line each, in order."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from tests.simulation.postgres import Commit
from tests.simulation.rows import Told
from tests.simulation.scheduler import SECOND_US, START, START_US
from tests.simulation.worker import Entry
from tests.simulation.world import Outcome

_NAMED = 8  # digits of an id, at its end: run ids begin with their time


def trace(outcome: Outcome) -> list[str]:
    """Every line begins with the second of virtual time."""
    lines = [(at_us, f"!! {what}") for at_us, what in outcome.faults]
    for commit in outcome.seen.commits:
        lines += [(commit.at_us, line) for line in _of_commit(commit)]
    for entry in outcome.seen.entries:
        at_us = START_US + int((entry.at - START).total_seconds() * SECOND_US)
        lines.append((at_us, _of_entry(entry)))
    lines.sort(key=itemgetter(0))
    return [f"{(at_us - START_US) / SECOND_US:10.6f}  {line}" for at_us, line in lines]


def _of_commit(commit: Commit) -> Iterator[str]:
    claims = " ".join(f"p{claim.partition}@{claim.epoch}" for claim in commit.claims)
    for act in commit.acts:
        what, *more = act
        yield f"shard {commit.shard}  {what} {' '.join(map(_short, more))}  {claims}"
    for told in commit.told:
        yield f"shard {commit.shard}  {_of_event(told)}  {claims}"


def _of_event(told: Told) -> str:
    words = [f"{told.event} v{told.version}", f"job {_short(told.job_id)}"]
    if told.run_id is not None:
        words.append(f"run {_short(told.run_id)}")
    for name in ("lease_token", "attempt", "worker_id", "due_at", "lease_expires_at", "count", "reason"):
        if (value := getattr(told, name)) is not None:
            words.append(f"{name} {_short(value)}")
    return "  ".join(words)


def _of_entry(entry: Entry) -> str:
    words = [entry.worker, entry.kind]
    if entry.run_id is not None:
        words.append(f"run {_short(entry.run_id)} token {entry.token}")
    if entry.what:
        words.append(f"{entry.what}: {entry.status}")
    if entry.until is not None:
        words.append(f"until {_short(entry.until)}")
    if entry.request is not None:
        words.append(f"request {_short(entry.request)}")
    words += [f"run {_short(run_id)} token {token}" for run_id, token in entry.told]
    return "  ".join(words)


def _short(value: object) -> str:
    if hasattr(value, "hex") and hasattr(value, "bytes"):
        return str(value)[-_NAMED:]
    if hasattr(value, "isoformat"):
        return f"{(value - START).total_seconds():.6f}"  # type: ignore[operator]
    return str(value)
