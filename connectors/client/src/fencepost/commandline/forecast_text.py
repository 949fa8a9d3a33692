"""A forecast as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from fencepost.forecast.clock_changes import ClockChange
from fencepost.forecast.forecast import Forecast, OverLimit
from fencepost.forecast.second_loads import Busy
from fencepost.forecast.slots import QueueSlots

QUEUES_SHOWN = 20
OVER_SHOWN = 5
REASONS_SHOWN = 3
REASON_WIDTH = 100
BAR_WIDTH = 50
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def forecast_lines(made: Forecast) -> Iterator[str]:
    """The whole forecast; of queues the largest."""
    yield f"{_count(made.runs, 'run')} after {_instant(made.start)} up to {_instant(made.end)}"
    schedules = _count(made.distinct, "distinct schedule")
    yield f"    of {_count(made.jobs, 'job')} with {schedules}; {_number(made.per_second)} runs/s on average"
    if made.overdue:
        yield f"    {_count(made.overdue, 'run')} of them are due already"
    yield from _refused_lines(made)
    for section in (_worst_lines, _minute_lines, _hour_lines, _clock_lines, _queue_lines, _saving_lines):
        lines = list(section(made))
        if lines:
            yield ""
            yield from lines
    if made.over_limit is not None:
        yield ""
        yield from _limit_lines(made.over_limit)


def _refused_lines(made: Forecast) -> Iterator[str]:
    if made.refused:
        yield f"    {_count(made.refused, 'schedule')} left out, which cannot be right:"
        yield from (f"        {_cut(reason)}" for reason in made.reasons[:REASONS_SHOWN])
        if made.refused > REASONS_SHOWN:
            yield "        …"


def _worst_lines(made: Forecast) -> Iterator[str]:
    if made.worst_seconds:
        yield "Worst seconds"
    width = _width([worst.runs for worst in made.worst_seconds])
    for worst in made.worst_seconds:
        whose = ", ".join(f"{heavy.jobs:,} × {heavy.schedule}" for heavy in worst.heaviest)
        yield f"    {_instant(worst.at)}  {worst.runs:>{width},} {_runs(worst.runs):<4}  {whose}".rstrip()


def _minute_lines(made: Forecast) -> Iterator[str]:
    if made.worst_minutes:
        yield "Worst minutes"
    width = _width([worst.runs for worst in made.worst_minutes])
    for worst in made.worst_minutes:
        yield f"    {_instant(worst.at)}  {worst.runs:>{width},} {_runs(worst.runs)}"


def _hour_lines(made: Forecast) -> Iterator[str]:
    most = max(made.by_hour)
    if most:
        yield "Runs by hour of the day, UTC"
    width = _width(made.by_hour)
    for hour, runs in enumerate(made.by_hour if most else ()):
        yield f"    {hour:02}  {runs:>{width},}  {'█' * -(-runs * BAR_WIDTH // most)}".rstrip()


def _clock_lines(made: Forecast) -> Iterator[str]:
    if made.clock_changes:
        yield "Nights on which clocks are changed"
    for change in made.clock_changes:
        night = f"{WEEKDAYS[change.local_from.weekday()]} {change.local_from:%Y-%m-%d} {change.zone}"
        yield f"    {night}: {change.local_from:%H:%M} becomes {change.local_to:%H:%M} ({_instant(change.at)})"
        yield from (f"        {line}" for line in _change_lines(change))


def _change_lines(change: ClockChange) -> Iterator[str]:
    if change.moved:
        yield f"{_count(change.moved, 'run')} moved to the end of the gap"
    if change.merged:
        yield f"{_count(change.merged, 'run')} fewer: several minutes of one schedule come together there"
    if change.once:
        yield f"{_count(change.once, 'run')} at a time that is read twice: the first is taken"
    sooner = f"{_span(change.shift_seconds)} {'earlier' if change.shift_seconds > 0 else 'later'}"
    yield f"{_count(change.jobs, 'job')} by this clock, {sooner} in UTC from then on"


def _queue_lines(made: Forecast) -> Iterator[str]:
    queues = sorted(made.queues, key=lambda queue: (-queue.peak_slots, queue.queue))
    shown = queues[:QUEUES_SHOWN]
    if shown:
        width = max(len("queue"), *(len(queue.queue) for queue in shown))
        yield "Slots needed, so that every run starts when it is due"
        yield f"    {'queue':<{width}}  {'runs':>12}  {'seconds a run':>13}  {'on average':>10}  {'at most':>9}"
        yield from (f"    {_queue_line(queue, width)}" for queue in shown)
    if len(queues) > len(shown):
        yield f"    … and {_count(len(queues) - len(shown), 'queue')} more: see --json"


def _queue_line(queue: QueueSlots, width: int) -> str:
    taken = f"{queue.seconds_per_run:.3g}" + (" seen" if queue.observed else "")
    line = f"{queue.queue:<{width}}  {queue.runs:>12,}  {taken:>13}  {_number(queue.mean_slots):>10}"
    return f"{line}  {queue.peak_slots:>9,}" + (f"  {_instant(queue.peak_at)}" if queue.peak_at else "")


def _saving_lines(made: Forecast) -> Iterator[str]:
    if made.savings:
        yield "The worst second, were its heaviest schedules spread"
        yield f"    {'schedules':>9}  {'jobs':>9}  {'over their minute':<31}  over their hour"
        yield f"    {'':>9}  {'':>9}  {'(jitterSeconds: 60)':<31}  (H for the minute, or jitterSeconds: 3600)"
    for saving in made.savings:
        minute, hour = _peak(saving.over_minute), _peak(saving.over_hour)
        yield f"    {saving.schedules:>9,}  {saving.jobs:>9,}  {minute:<31}  {hour}"


def _limit_lines(over: OverLimit) -> Iterator[str]:
    if not over.seconds:
        yield f"No second has more than {_count(over.per_second, 'run')}."
        return
    yield f"{_count(over.seconds, 'second')} with more than {_count(over.per_second, 'run')}"
    yield from _few(over.first, over.seconds)
    if over.crowded:
        yield f"{_count(over.crowded, 'second')} of them in which the jobs that are added fire"
        yield from _few(over.first_crowded, over.crowded)


def _few(busy: Sequence[Busy], of: int) -> Iterator[str]:
    yield from (f"    {_peak(each)}" for each in busy[:OVER_SHOWN])
    if of > OVER_SHOWN:
        yield "    …"


def _peak(busy: Busy | None) -> str:
    return f"{busy.runs:,} at {_instant(busy.at)}" if busy else "none"


def _span(seconds: int) -> str:
    hours, rest = divmod(abs(seconds), 3600)
    return f"{hours} h" if not rest else f"{abs(seconds) // 60} min"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _width(numbers: Sequence[int]) -> int:
    return max((len(f"{number:,}") for number in numbers), default=0)


def _cut(text: str) -> str:
    return text if len(text) <= REASON_WIDTH else text[: REASON_WIDTH - 1] + "…"


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _instant(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
