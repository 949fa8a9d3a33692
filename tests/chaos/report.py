"""The report of a chaos run, as Markdown: what was done, what came of it, and the command that does the same again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.chaos.checker import Violation
from tests.chaos.fault_plan import PlannedFault
from tests.chaos.history import TopicEvent
from tests.chaos.job_rules import Fault

DUPLICATES_PROMISED = 0.0001
# After a fault, what was due in it is still being caught up with.
AFTERMATH = timedelta(seconds=10)
SHOWN_VIOLATIONS = 50


@dataclass(frozen=True)
class Lateness:
    """Of the first lease of runs, in seconds."""

    runs: int
    p50: float
    p99: float
    worst: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Lateness:
        if not seconds:
            return cls(0, 0.0, 0.0, 0.0)
        ordered = sorted(seconds)
        p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        return cls(len(ordered), p50, p99, ordered[-1])

    def __str__(self) -> str:
        return f"{self.runs} | {self.p50:.3f} | {self.p99:.3f} | {self.worst:.3f}"


def lateness(events: Sequence[TopicEvent], faults: Sequence[Fault], whole_since: datetime) -> dict[str, Lateness]:
    """By when runs were due: while something was broken, between faults, and after the last of them."""
    kinds: dict[str, list[float]] = {"in a fault or 10 s after it": [], "between faults": [], "after the last": []}
    started: set[str] = set()
    broken, between, after = kinds.values()
    spans = sorted((fault.since, fault.until + AFTERMATH) for fault in faults)
    for event in sorted((each for each in events if each.type == "run_leased"), key=lambda each: each.version):
        if event.run_id in started or event.due_at is None:
            continue
        started.add(event.run_id)
        late_s, due = (event.at - event.due_at).total_seconds(), event.due_at
        if any(since <= due <= until for since, until in spans):
            broken.append(late_s)
        else:
            (after if due >= whole_since else between).append(late_s)
    return {kind: Lateness.of(late) for kind, late in kinds.items()}


@dataclass
class Outcome:
    """What a run of chaos was and what came of it. counts: what is worth counting, by what it is."""

    command: str
    commit: str
    began: datetime
    options: dict[str, object]
    planned: Sequence[PlannedFault]
    timeline: Sequence[tuple[float, str]]
    counts: dict[str, int]
    lateness: dict[str, Lateness]
    duplicates: int
    completed: int
    violations: list[Violation]
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        found = f"{len(self.violations)} violations" if self.violations else "no violation"
        share = self.duplicates / max(1, self.completed)
        compared = "within" if share <= DUPLICATES_PROMISED else "beyond"
        return (
            f"{found}; {self.completed} runs completed, {self.duplicates} of them executed twice "
            f"({100 * share:.3f} %, {compared} the promised {100 * DUPLICATES_PROMISED:.2f} %)"
        )

    def markdown(self) -> str:
        """The whole report."""
        return "\n".join([*self._head(), *self._figures(), *self._what_was_broken(), *self._what_was_found(), ""])

    def _head(self) -> list[str]:
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return [
            f"# Chaos, {self.began:%Y-%m-%d %H:%M} UTC",
            "",
            f"**{self.verdict[0].upper()}{self.verdict[1:]}.**",
            "",
            f"- commit `{self.commit}`; {options}",
            f"- again: `{self.command}`",
            *(f"- {note}" for note in self.notes),
            "",
        ]

    def _figures(self) -> list[str]:
        return [
            "## Figures",
            "",
            "| what | count |",
            "|---|---|",
            *(f"| {what} | {count} |" for what, count in self.counts.items()),
            "",
            "How late runs started (first lease, seconds), by when they were due:",
            "",
            "| due | runs | p50 | p99 | worst |",
            "|---|---|---|---|---|",
            *(f"| {kind} | {late} |" for kind, late in self.lateness.items()),
            "",
        ]

    def _what_was_broken(self) -> list[str]:
        kinds = Counter(fault.kind.replace("_", " ") for fault in self.planned)
        lines = (f"{at_s:8.1f} s  {text}" for at_s, text in self.timeline)
        return [
            "## What was broken",
            "",
            ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
            "",
            "```",
            *lines,
            "```",
            "",
        ]

    def _what_was_found(self) -> list[str]:
        if not self.violations:
            return []
        shown = [f"- `{each.rule}`: {each.subject}: {each.detail}" for each in self.violations[:SHOWN_VIOLATIONS]]
        return ["## Violations", "", *shown]
