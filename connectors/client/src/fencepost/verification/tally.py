"""What a verification has counted and found so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from fencepost.schedules.zones import TZDATA_VERSION
from fencepost.verification.certificate import (
    Certificate,
    Counts,
    RuleResult,
    Unchecked,
    Verdict,
    Violation,
    started_again,
    trace_of,
)
from fencepost.verification.events import RunEvent
from fencepost.verification.run_life import RunLife
from fencepost.verification.run_rules import RUN_RULES

SHOWN = 1_000  # violations with their traces; of others only the number is kept

ARRIVAL, OCCURRENCES, ALONE, LOST = (
    "versions_arrive_in_order",
    "occurrences_are_decided_once",
    "one_lease_a_job",
    "nothing_is_lost",
)
PROMISES: Mapping[str, str] = {
    **{name: (rule.__doc__ or "").partition("\n")[0] for name, rule in RUN_RULES.items()},
    ARRIVAL: "A run's events come in the order of their versions; a redelivery repeats what was there before.",
    OCCURRENCES: "Every occurrence has exactly one decision, a run or a skip with its reason, and none is left out.",
    ALONE: "Of a job that does not allow overlap no two runs are leased at once.",
    LOST: "Every job gets its run, and a run that is due is leased, has ended, or is known to wait.",
}


class Tally:
    """facts: on how many each rule was held. counts: of events by type, and of what else was seen."""

    def __init__(self) -> None:
        self.facts: Counter[str] = Counter(dict.fromkeys(PROMISES, 0))
        self.counts: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()  # what is overdue, by what keeps it
        self.broken: Counter[str] = Counter()
        self.violations: list[Violation] = []

    def break_rule(
        self, rule: str, subject: str, detail: str, life: RunLife | None = None, event: RunEvent | None = None
    ) -> None:
        """event: the one that breaks it, where it is not in the life yet."""
        self.broken[rule] += 1
        if len(self.violations) < SHOWN:
            events = [*life.events, *([event] if event else [])] if life else []
            self.violations.append(Violation(rule, subject, detail, trace_of(events)))

    def certificate(
        self,
        verdict: Verdict,
        source: str,
        tenant: str | None,
        when: tuple[datetime, datetime],
        through: datetime | None,
        unchecked: list[Unchecked],
    ) -> Certificate:
        """when: from when until when. unchecked: what the source could not tell, beside what is known here."""
        since, until = when
        return Certificate(
            verdict=verdict,
            source=source,
            tenant=tenant,
            since=since,
            until=until,
            through=through,
            tzdata=TZDATA_VERSION,
            counts=self._counts(),
            started_again=started_again(self.counts["started again"], self.counts["started"]),
            rules=[RuleResult(name, PROMISES[name], self.facts[name], self.broken[name]) for name in PROMISES],
            unchecked=[*unchecked, *self._unchecked()],
            violations=self.violations,
            unshown=self.broken.total() - len(self.violations),
        )

    def _counts(self) -> Counts:
        return Counts(
            events=self.counts["events"],
            runs=self.counts["runs"],
            attempts=self.counts["run_leased"],
            completed=self.counts["run_completed"],
            dead=self.counts["run_dead"],
            cancelled=self.counts["run_cancelled"],
            skipped=self.counts["run_skipped"],
            jobs=self.counts["jobs"],
            occurrences=self.counts["occurrences"],
            redelivered=self.counts["redelivered"],
        )

    def _unchecked(self) -> list[Unchecked]:
        open_runs, undefined, unreadable = (self.counts[name] for name in ("open", "undefined", "unreadable"))
        adopted, unknown = self.counts["adopted"], self.counts["unknown"]
        found = [
            Unchecked("epochs", "neither the history nor the topic holds them"),
            Unchecked("how leases were extended", "heartbeats leave no events"),
        ]
        if adopted:
            found.append(Unchecked("what runs did before", "their first events are not there", adopted))
        if open_runs:
            found.append(Unchecked("how runs end", "they were not over at the end of the range", open_runs))
        if undefined:
            found.append(Unchecked("occurrences of jobs", "their definitions are older than what is there", undefined))
        if unreadable:
            found.append(Unchecked("occurrences of jobs", "their schedules cannot be read here", unreadable))
        if unknown:
            found.append(Unchecked("events", "this version does not know their kind", unknown))
        found += [Unchecked("what is overdue", why, count) for why, count in self.explained.items()]
        return found
