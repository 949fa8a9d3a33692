"""What should have happened by now, for all that the events tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from fencepost.verification.events import instant_text
from fencepost.verification.run_life import WAITING, RunLife


class Suspect(NamedTuple):
    """A run that should have been leased or ended, or a job's occurrence that should have a decision.

    what: what the events tell of it. occurrence: of a job.
    """

    what: str
    job_id: str
    run_id: str | None = None
    occurrence: datetime | None = None


def overdue_runs(lives: Iterable[RunLife], since: datetime) -> Iterator[Suspect]:
    """Runs that were due before `since` and not leased, or whose lease was over then, but for heartbeats."""
    for life in lives:
        expires_at = life.lease.expires_at if life.lease is not None else None
        due_at = life.due_at if life.state in WAITING else None
        if expires_at is not None and expires_at < since:
            what = f"leased until {instant_text(expires_at)}, and nothing has ended the lease"
            yield Suspect(what, life.job_id, life.run_id)
        elif due_at is not None and due_at < since:
            yield Suspect(f"due since {instant_text(due_at)}, and nobody has leased it", life.job_id, life.run_id)
