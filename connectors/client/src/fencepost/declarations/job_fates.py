"""What becomes of each job of a set when a file is applied. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from fencepost.declaration_client import DeclaredJob
from fencepost.declarations.definitions import Definition, definition_found
from fencepost.declarations.job_file import DeclaredSet, declared_key
from fencepost.declarations.occurrences import coming_occurrences, created_occurrences, edited_occurrences
from fencepost.errors import InvalidInput
from fencepost.ids import idempotent_id
from fencepost.schedules.schedule import Cron, Schedule, first_fire, next_fire, parse_schedule

# keep: on the server, not in the file, and not to be pruned. none: as the file says already.
Action = Literal["add", "change", "remove", "keep", "none"]


class JobFate(NamedTuple):
    """One job, from the server's definition (found; None: it is new) to the file's (wanted; None: it is not there).

    key: the idempotency key that a new job's id is made of.
    """

    name: str
    job_id: UUID
    action: Action
    found: DeclaredJob | None
    wanted: Definition | None
    key: str | None = None

    @property
    def schedule_found(self) -> Schedule | None:
        """Raises UnknownZone when this tzdata lacks its zone."""
        return parse_schedule(self.found.schedule, job_id=self.job_id) if self.found else None

    @property
    def schedule_wanted(self) -> Schedule | None:
        return parse_schedule(self.wanted["schedule"], job_id=self.job_id) if self.wanted else None

    @property
    def zone(self) -> str:
        """By whose days its occurrences are compared: the new schedule's."""
        schedule = self.schedule_wanted or self.schedule_found
        return schedule.zone if isinstance(schedule, Cron) else "UTC"

    @property
    def keeps_time(self) -> bool:
        """Whether its schedule stays: then what is pending stays, too."""
        if self.found is None or self.action in ("add", "remove"):
            return False
        return self.wanted is None or self.wanted["schedule"] == self.found.schedule

    def occurrences_before(self, start: datetime, end: datetime) -> list[datetime]:
        """In (start, end], if nothing is applied. While a job is paused nothing of it occurs."""
        schedule, found = self.schedule_found, self.found
        if schedule is None or found is None or found.state == "paused":
            return []
        cursor = found.next_run_at
        return coming_occurrences(schedule, cursor, start, end, job_id=self.job_id, created_at=found.created_at)

    def occurrences_after(self, start: datetime, end: datetime) -> list[datetime]:
        """In (start, end], if the file is applied at start."""
        schedule, found = self.schedule_wanted, self.found
        if self.keeps_time:
            return self.occurrences_before(start, end)
        if schedule is None or (found and found.state == "paused"):
            return []
        if found is None:
            return created_occurrences(schedule, start, end, job_id=self.job_id)
        return edited_occurrences(schedule, start, end, job_id=self.job_id, created_at=found.created_at)

    def pending_after(self, start: datetime) -> datetime | None:
        """The occurrence that is pending once the file is applied. Raises InvalidInput for a job that never fires."""
        schedule, found = self.schedule_wanted, self.found
        if found and self.keeps_time:
            return found.next_run_at
        if schedule is None:
            return None
        if found is None:
            fire = first_fire(schedule, job_id=self.job_id, created_at=start)
        else:
            fire = next_fire(schedule, start, job_id=self.job_id, created_at=found.created_at)
        if fire is None:
            told = "never fires from now on; check runAt, startAt and endAt"
            raise InvalidInput(told, field=f"jobs.{self.name}.schedule")
        return fire


def job_fates(
    declared: DeclaredSet, found: Sequence[DeclaredJob], *, tenant: str, prune: bool = False
) -> Iterator[JobFate]:
    """The file's jobs in its order, then those that only the server has."""
    used = {job.job_id for job in found if job.state == "deleted"}
    alive = {job.declared_as.partition("/")[2]: job for job in found if job.state != "deleted"}
    for name, wanted in declared.jobs.items():
        job = alive.get(name)
        if job is None:
            yield _addition(declared.name, name, wanted, tenant, used)
        else:
            same = definition_found(job) == wanted
            yield JobFate(name, job.job_id, "none" if same else "change", job, wanted)
    for name in sorted(alive.keys() - declared.jobs.keys()):
        yield JobFate(name, alive[name].job_id, "remove" if prune else "keep", alive[name], None)


def _addition(set_name: str, name: str, wanted: Definition, tenant: str, used: set[UUID]) -> JobFate:
    """A deleted job's id is never used again: a job that is declared anew gets the next one of its name."""
    generation = 1
    while (job_id := idempotent_id(tenant, key := declared_key(set_name, name, generation))) in used:
        generation += 1
    return JobFate(name, job_id, "add", None, wanted, key)
