"""A certificate for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fencepost.verification.certificate import Certificate, TraceLine, Violation
from fencepost.verification.events import instant_text

_VERDICTS = {
    "holds": "holds: nothing breaks a rule",
    "violated": "VIOLATED",
    "not judged": "NOT JUDGED: see what was not checked",
}
_TRACE_HEAD = ("at", "version", "event", "token", "attempt", "worker", "due", "leased until", "reason")


def certificate_lines(made: Certificate, shown: int) -> Iterator[str]:
    """shown: how many violations at most are told with their traces."""
    yield f"certificate of {made.tenant or 'all tenants'}, {_range(made)}, by {made.source}"
    yield f"{_VERDICTS[made.verdict]}{_how_many(made)}"
    yield ""
    yield from _counts(made)
    yield ""
    yield f"{'facts':>12}  {'broken':>6}  rule"
    for rule in made.rules:
        yield f"{rule.facts:>12,}  {rule.violations:>6,}  {rule.promise}"
    yield ""
    yield "not checked"
    for each in made.unchecked:
        count = "" if each.count is None else f"{each.count:,} × "
        yield f"  {count}{each.what}: {each.why}"
    for violation in made.violations[:shown]:
        yield ""
        yield from violation_lines(violation)
    left = len(made.violations) - shown + made.unshown
    if left > 0:
        yield f"{left:,} more; --json has up to 1,000 of them"


def violation_lines(violation: Violation) -> Iterator[str]:
    """What breaks the rule, and the run's events until then."""
    yield f"broken: {violation.rule}"
    yield f"  {violation.subject}: {violation.detail}"
    if violation.trace:
        rows = [_TRACE_HEAD, *map(_cells, violation.trace)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _range(made: Certificate) -> str:
    return f"{instant_text(made.since)} to {instant_text(made.until)}"


def _how_many(made: Certificate) -> str:
    count = sum(rule.violations for rule in made.rules)
    return f": {count:,} time{'' if count == 1 else 's'}" if count else ""


def _counts(made: Certificate) -> Iterator[str]:
    counts, again = made.counts, made.started_again
    ends = _listed((counts.completed, "completed"), (counts.dead, "dead"), (counts.cancelled, "cancelled"))
    yield f"{counts.events:,} events: {counts.runs:,} runs in {counts.attempts:,} attempts; {ends}"
    decided = f"{counts.occurrences:,} occurrences of {counts.jobs:,} jobs decided, {counts.skipped:,} runs skipped"
    yield f"{decided}; time zones {made.tzdata}"
    compared = "within" if again.kept else "OVER"
    runs = f"{again.runs:,} of {again.started:,} runs were started again after their lease had expired"
    yield f"{runs}: {again.share:.4%}, {compared} the promise of {again.share_max:.2%}"
    if made.through is not None:
        yield f"what should have happened was looked for until {instant_text(made.through)}"


def _listed(*named: tuple[int, str]) -> str:
    return ", ".join(f"{count:,} {name}" for count, name in named)


def _cells(line: TraceLine) -> tuple[str, ...]:
    instants: Iterable[str] = (instant_text(each) if each else "" for each in (line.due_at, line.lease_expires_at))
    due, until = instants
    texts = ("" if each is None else str(each) for each in (line.token, line.attempt, line.worker))
    return instant_text(line.at), str(line.version), line.event, *texts, due, until, line.reason or ""
