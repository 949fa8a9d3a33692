"""A plan as people read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from fencepost.declarations.definitions import Definition
from fencepost.declarations.load import Load
from fencepost.declarations.plan import JobPlan, Plan

SIGNS = {"add": "+", "change": "~", "remove": "-", "keep": "="}
TIMES_SHOWN = 3
VALUE_WIDTH = 60
BAR_WIDTH = 60
STAYING, COMING, GOING = "█", "+", "-"


def plan_lines(plan: Plan, most: int | None = TIMES_SHOWN) -> Iterator[str]:
    """The whole plan. most: occurrences of each kind that a job's lines name; None: all."""
    yield f"Set {plan.set} of tenant {plan.tenant}: {_counts(plan)}"
    yield f"Occurrences after {_instant(plan.start)} up to {_instant(plan.end)}"
    for job in plan.jobs:
        if job.action != "none":
            yield ""
            yield from _job_lines(job, plan, most)
    yield ""
    yield from _load_lines(plan)
    yield ""
    yield f"plan {plan.hash}"


def _counts(plan: Plan) -> str:
    counts = Counter(job.action for job in plan.jobs)
    said = f"{counts['add']} to add, {counts['change']} to change, {counts['remove']} to remove"
    said += f", {counts['none']} unchanged"
    return said + (f", {counts['keep']} kept that the file has not (--prune removes them)" if counts["keep"] else "")


def _job_lines(job: JobPlan, plan: Plan, most: int | None) -> Iterator[str]:
    paused = ", paused: nothing fires until it is resumed" if job.state == "paused" else ""
    kept = ", kept: not in the file" if job.action == "keep" else ""
    yield f"{SIGNS[job.action]} {job.name}  {job.job_id}{kept}{paused}"
    lines = [*_definition_lines(job), *_occurrence_lines(job, plan, most), *_run_lines(job)]
    yield from (f"    {line}" for line in lines)


def _definition_lines(job: JobPlan) -> Iterator[str]:
    if job.action == "add" and job.definition is not None:
        yield f"queue {job.definition['queue']}, {_schedule(job.definition)}"
    for change in job.fields:
        yield f"{change.field}: {_value(change.before)} → {_value(change.after)}"


def _occurrence_lines(job: JobPlan, plan: Plan, most: int | None) -> Iterator[str]:
    seen = job.occurrences
    if seen.moved:
        pairs = [f"{_instant(each.before)} → {_instant(each.after)}" for each in seen.moved[:most]]
        yield f"{len(seen.moved)} moved: {_listed(pairs, seen.moved)} (paired by day in {seen.zone}, in order)"
    if seen.added:
        yield f"{len(seen.added)} added: {_listed(map(_instant, seen.added[:most]), seen.added)}"
    if seen.added and seen.added[0] <= plan.start:
        yield "its time has passed: it runs at once"
    if seen.removed:
        yield f"{len(seen.removed)} removed: {_listed(map(_instant, seen.removed[:most]), seen.removed)}"
    if seen.unchanged:
        yield f"{seen.unchanged} stay where they are"
    if not (seen.moved or seen.added or seen.removed or seen.unchanged or job.state == "paused"):
        yield "no occurrence in this time"


def _run_lines(job: JobPlan) -> Iterator[str]:
    """What becomes of the runs that are there."""
    waiting = "held" if job.state == "paused" else "pending"
    before, after = job.pending_before, job.pending_after
    if job.action == "change" and before is not None:
        if after is None:
            yield f"its {waiting} run, of {_instant(before)}, is cancelled: no occurrence is left"
        elif before == after:
            yield f"its {waiting} run, of {_instant(before)}, stays and is made as the new definition says"
        else:
            yield f"its {waiting} run, of {_instant(before)}, is replaced by one of {_instant(after)}"
    elif job.action == "change" and after is not None:
        yield f"a run of {_instant(after)} will be {waiting}"
    if job.action == "remove" and (dropped := job.pending_runs + job.held_runs):
        yield f"{_runs(dropped)} that no worker has leased {'is' if dropped == 1 else 'are'} cancelled"
    if job.action in ("change", "remove") and job.leased_runs:
        yield f"{_runs(job.leased_runs)} that a worker has leased {'goes' if job.leased_runs == 1 else 'go'} on"


def _load_lines(plan: Plan) -> Iterator[str]:
    before, after = plan.load_before, plan.load_after
    yield f"Load of the set: {_runs(before.runs)} before, {after.runs} after"
    yield f"    busiest minute before: {_peak(before)}"
    yield f"    busiest minute after:  {_peak(after)}"
    most = max(*before.by_hour, *after.by_hour)
    if not most:
        return
    width = len(str(most))
    yield f"Runs by hour of the day, UTC: before, after ({STAYING} in both, {COMING} more, {GOING} less)"
    for hour, (old, new) in enumerate(zip(before.by_hour, after.by_hour, strict=True)):
        yield f"    {hour:02}  {old:>{width}}  {new:>{width}}  {_bar(old, new, most)}".rstrip()


def _peak(load: Load) -> str:
    return f"{_runs(load.peak)} at {_instant(load.peak_at)}" if load.peak_at else "none"


def _bar(before: int, after: int, most: int) -> str:
    old, new = (-(-runs * BAR_WIDTH // most) for runs in (before, after))
    return STAYING * min(old, new) + COMING * (new - old) + GOING * (old - new)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _listed(texts: Iterable[str], of: Sequence[object]) -> str:
    shown = list(texts)
    return ", ".join(shown) + (", …" if len(shown) < len(of) else "")


def _schedule(definition: Definition) -> str:
    fields: dict[str, Any] = definition["schedule"]
    return ", ".join(f"{name} {value if isinstance(value, str) else _value(value)}" for name, value in fields.items())


def _value(value: Any) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_WIDTH else text[: VALUE_WIDTH - 1] + "…"


def _instant(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
