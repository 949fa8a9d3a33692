"""A new owner whose tzdata is not that of its jobs: pending occurrences move to where its own rules have them.

So whoever decides a cursor finds it as its own rules have it. All that moves does so before the owner works, in
transactions of bounded size; after a crash the next owner goes on with the jobs that are left. Newer and older rules
are treated alike: while a fleet runs both, a partition's jobs move once each time it changes hands, and no more after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import msgspec

from ledger.connection import Pool, session
from ledger.edits import Edit, update_jobs
from ledger.fence import OwnerTransaction
from ledger.jobs import Job, policies_of, read_jobs
from ledger.zone_rules import find_stale_jobs, has_rules, keep_rules, lock_unstarted, read_rules, stamp_jobs
from schemas.carry_over import carry_over
from schemas.commands import JobSpec
from schemas.errors import InvalidSchedule
from schemas.ids import run_id_for
from schemas.schedule import Cron, due_at, parse_schedule
from schemas.zones import KeptZone, zone_data, zone_names

log = logging.getLogger(__name__)

ZONE_RULES = "zone rules"  # the reason of what is moved
_MOVED_AT_ONCE = 200
_STAMPED_AT_ONCE = 2_000

Begin = Callable[[], AbstractAsyncContextManager[OwnerTransaction]]


async def follow_zone_rules(pool: Pool, partition: int, begin: Begin) -> list[UUID]:
    """Make the pending occurrences of a partition those of this process's tzdata.

    begin: opens a fenced transaction of the new owner. Costs one look at the partition's jobs when nothing is to be
    done. Returns the jobs that are as these rules have them, too, of which the ledger need not hear at once. Raises
    EpochLost, LedgerUnavailable.
    """
    async with session(pool) as conn:
        is_kept, stale = await has_rules(conn), await find_stale_jobs(conn, partition)
        former = {
            version: await read_rules(conn, version) for version in {job.tzdata_version for job in stale} if version
        }
    if not is_kept:
        async with begin() as tx:
            await keep_rules(tx, {zone: zone_data(zone) for zone in zone_names()})
    changed = _changed_zones({(job.tzdata_version, job.zone) for job in stale}, former)
    moving = {job.job_id: changed[key] for job in stale if (key := (job.tzdata_version, job.zone)) in changed}
    for job_ids in _batches(list(moving), _MOVED_AT_ONCE):
        async with begin() as tx:
            await _move(tx, {job_id: moving[job_id] for job_id in job_ids})
    if moving:
        log.info("partition %d: %d jobs looked at for other rules of their zones", partition, len(moving))
    return [job.job_id for job in stale if job.job_id not in moving]


async def stamp(job_ids: Sequence[UUID], begin: Begin) -> None:
    """Note in the ledger what need not be told at once. Raises EpochLost, LedgerUnavailable."""
    for batch in _batches(job_ids, _STAMPED_AT_ONCE):
        async with begin() as tx:
            await stamp_jobs(tx, batch)


_Key = tuple[str | None, str | None]  # a version of tzdata, and a zone


def _changed_zones(keys: Iterable[_Key], former: Mapping[str, Mapping[str, bytes]]) -> dict[_Key, KeptZone | None]:
    """Those of the zones that have other rules here, with the rules of that version; None for rules nobody kept."""
    changed: dict[_Key, KeptZone | None] = {}
    for version, zone in keys:
        if zone in (None, "UTC"):
            continue
        assert zone is not None
        kept = former.get(version or "", {}).get(zone)
        if zone not in zone_names() or kept != zone_data(zone):
            changed[version, zone] = KeptZone.of(zone, kept) if kept else None
    return changed


async def _move(tx: OwnerTransaction, former: Mapping[UUID, KeptZone | None]) -> None:
    jobs = await read_jobs(tx.conn, list(former))
    pending = {
        job.job_id: run_id_for(job.job_id, job.next_fire_at, job.partition)
        for job in jobs.values()
        if job.next_fire_at is not None
    }
    unstarted = await lock_unstarted(tx, list(pending.values()))
    edits: list[Edit] = []
    unmoved: list[UUID] = []
    for job_id, run_id in pending.items():
        try:
            edit = _edit(jobs[job_id], run_id, former[job_id], taken=run_id not in unstarted)
        except (InvalidSchedule, msgspec.ValidationError):
            log.exception("job %s cannot be moved to other rules of its zone", job_id)
            continue
        if edit is None:
            unmoved.append(job_id)
        else:
            edits.append(edit)
    await stamp_jobs(tx, unmoved)
    if edits:
        await update_jobs(tx, edits, reason=ZONE_RULES, now=tx.now)


def _edit(job: Job, run_id: UUID, former: KeptZone | None, *, taken: bool) -> Edit | None:
    """The job's definition as it is, with another pending occurrence; None when that is where it was."""
    spec = msgspec.json.decode(job.definition, type=JobSpec)
    schedule = parse_schedule(spec.schedule, job_id=job.job_id)
    assert isinstance(schedule, Cron)
    assert job.next_fire_at is not None
    fire = carry_over(
        schedule,
        job.next_fire_at,
        former,
        taken=taken,
        edited=job.edited_at is not None,
        job_id=job.job_id,
        created_at=job.created_at,
    )
    if fire == job.next_fire_at:
        return None
    return Edit(
        job.job_id,
        job.queue,
        job.lane,
        job.definition,
        job.payload,
        job.max_attempts,
        fire,
        run_id,
        run_id_for(job.job_id, fire, job.partition) if fire else None,
        due_at(schedule, fire, job_id=job.job_id) if fire else None,
        policies_of(spec),
    )


def _batches(job_ids: Sequence[UUID], size: int) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(job_ids), size):
        yield job_ids[start : start + size]
