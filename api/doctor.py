"""GET /v1/doctor: what is wrong with the installation, as far as an operator of one tenant may know, and what to do.

Partitions, outbox, Kafka and history are everybody's; runs, pauses and decisions are those of the caller's tenant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from api.checkup import STALLED_LIMIT, UNDECIDED_WARN_S, Checkup, check_shard, together
from api.command_producer import CommandProducer
from api.endpoints import Call
from api.history_client import HistoryAway, HistoryClient, HistoryHealth
from ledger.checkups import PartitionsCheckup, RunsCheckup, StalledJob
from ledger.clock import LedgerClock
from ledger.connection import Pool, session
from ledger.pauses import Pause
from ledger.shards import Shards
from ledger.watchdogs import Attendance, Snapshot, Standbys
from schemas.commands import JobSpec
from schemas.errors import InvalidSchedule, LedgerUnavailable
from schemas.http import NoBody
from schemas.http_explanations import Diagnosis, Finding
from schemas.schedule import parse_schedule
from schemas.zones import TZDATA_VERSION

PROBE_TIMEOUT_S = 2.0
LEDGER_TIMEOUT_S = 10.0
# An owner that dies is missed after 15 s (ARCHITECTURE, Failure table); what lasts longer is no handover.
UNOWNED_FAIL_S = 15.0
SILENT_FAIL_S = 60.0
OVERDUE_WARN_S = 60.0
EXPIRED_WARN_S, EXPIRED_FAIL_S = 5.0, 60.0
OUTBOX_WARN_S, OUTBOX_FAIL_S = 10.0, 300.0
HISTORY_WARN_RECORDS = 1_000
STANDBY_WARN_S = 30.0
SNAPSHOT_WARN_S, SNAPSHOT_FAIL_S = 600.0, 3_600.0
SKEW_WARN_S = 1.0

Status = Literal["ok", "warn", "fail"]
_RANK: Sequence[Status] = ("ok", "warn", "fail")


class Doctor:
    """clocks: what this process estimates the shards' clocks by."""

    def __init__(
        self,
        shards: Shards,
        producer: CommandProducer,
        history: HistoryClient,
        clocks: Mapping[int, LedgerClock],
    ) -> None:
        self._shards = shards
        self._producer = producer
        self._history = history
        self._clocks = clocks

    async def diagnose(self, call: Call[NoBody]) -> Diagnosis:
        """Check the installation: every check has a finding, whatever is away."""
        tenant, pools = call.identity.tenant, self._shards.pools
        checkups, kafka, history = await asyncio.gather(
            asyncio.gather(*(self._look_at_shard(pool, tenant) for pool in pools.values())),
            asyncio.to_thread(self._producer.reachable, PROBE_TIMEOUT_S),
            self._look_at_history(),
        )
        shards = dict(zip(pools, checkups, strict=True))
        skews = {number: clock.skew_s() for number, clock in self._clocks.items()}
        findings = [*ledger_findings(shards), clocks_finding(skews), kafka_finding(kafka), history_finding(history)]
        return Diagnosis(status=max((each.status for each in findings), key=_RANK.index), findings=findings)

    async def _look_at_shard(self, pool: Pool, tenant: str) -> Checkup | str:
        """What it says, or why it says nothing."""
        try:
            async with asyncio.timeout(LEDGER_TIMEOUT_S), session(pool) as conn:
                return await check_shard(conn, tenant)
        except (TimeoutError, LedgerUnavailable) as error:
            return str(error) or f"it did not answer within {LEDGER_TIMEOUT_S:g} s"

    async def _look_at_history(self) -> HistoryHealth | str:
        try:
            return await self._history.health(PROBE_TIMEOUT_S)
        except HistoryAway as error:
            return str(error)


def ledger_findings(shards: Mapping[int, Checkup | str]) -> Iterator[Finding]:
    """What can be told from the shards that answer, each with its checkup; of the others, why they do not."""
    away = {number: said for number, said in shards.items() if isinstance(said, str)}
    found = [said for said in shards.values() if not isinstance(said, str)]
    if away:
        detail = "; ".join(said if len(shards) == 1 else f"shard {number}: {said}" for number, said in away.items())
        yield _finding("ledger", "fail", detail, "start Postgres, or mend the way to it")
    else:
        yield _finding("ledger", "ok", "it answers" if len(shards) == 1 else f"all {len(shards)} shards answer")
    if not found:
        return
    checkup = together(found)
    yield _ownership(checkup.partitions.total, checkup.attendance)
    yield _decisions(checkup.partitions)
    yield _schedules(checkup.stalled)
    yield _overdue(checkup.runs)
    yield _expired(checkup.runs)
    yield _dead(checkup.runs)
    yield _outbox(checkup)
    yield _paused(checkup.pauses)
    yield _tzdata(checkup.tzdata)
    yield standbys_finding(checkup.standbys)
    yield snapshot_finding(checkup.snapshot)


def clocks_finding(skews: Mapping[int, float]) -> Finding:
    """skews: of this process's clock to each shard's; NaN of one that was never reached."""
    known = {number: skew_s for number, skew_s in skews.items() if skew_s == skew_s}
    if not known:
        return _finding("clocks", "warn", "no shard's clock is known yet", "ask again once the ledger answers")
    worst = max(known, key=lambda number: abs(known[number]))
    between_s = max(known.values()) - min(known.values())
    detail = (
        f"this server's is {abs(known[worst]):.1f} s {'ahead of' if known[worst] > 0 else 'behind'} shard {worst}'s"
    )
    detail += f"; the shards' are {between_s:.1f} s apart" if len(known) > 1 else ""
    is_bad = max(abs(known[worst]), between_s) > SKEW_WARN_S
    remedy = "let NTP set both; runs go by their shard's clock alone, but logs and backups do not"
    return _finding("clocks", "warn" if is_bad else "ok", detail, remedy)


def kafka_finding(reachable: bool) -> Finding:
    if reachable:
        return _finding("kafka", "ok", "the commands topic can be reached")
    remedy = "start the broker, or mend the way to it; due runs go on meanwhile, creates and history do not"
    return _finding("kafka", "fail", f"no broker told of the commands topic within {PROBE_TIMEOUT_S:g} s", remedy)


def history_finding(health: HistoryHealth | str) -> Finding:
    """The history is never more than a warning: nothing that runs needs it."""
    if isinstance(health, str):
        return _finding("history", "warn", health, "start the history role; it reads on from where it was")
    if not health.kafka:
        return _finding("history", "warn", "it has not reached Kafka yet", "look at its log")
    lag = max(health.lag.values(), default=0)
    detail = f"at most {lag} records of a partition are not read yet"
    remedy = "wait while it catches up; when the number grows, look at its log and its disk"
    return _finding("history", "warn" if lag > HISTORY_WARN_RECORDS else "ok", detail, remedy)


def _ownership(total: int, found: Attendance) -> Finding:
    remedy = "start a streams role, and see in its log why it does not take them over"
    if found.unowned:
        detail = f"{found.unowned} of {total} partitions have none, for {found.unowned_s:.0f} s at most"
        return _finding("owners", "fail" if found.unowned_s > UNOWNED_FAIL_S else "warn", detail, remedy)
    if found.silent:
        silence = f"of {found.silent} nothing was heard for {found.silent_s:.0f} s at most"
        detail = f"each of {total} partitions has one, but {silence}: dead, frozen, or behind with decisions"
        return _finding("owners", "fail" if found.silent_s > SILENT_FAIL_S else "warn", detail, remedy)
    return _finding("owners", "ok", f"each of {total} partitions has one")


def _decisions(found: PartitionsCheckup) -> Finding:
    through = f"decided_through is {found.oldest_decided_s:.0f} s ago at the oldest"
    if not found.undecided_s:
        return _finding("decisions", "ok", f"no occurrence waits for one; {through}")
    waits = f"the oldest occurrence without one has waited {found.undecided_s:.0f} s"
    detail = f"{waits}; {found.undecided_partitions} partitions have such; {through}"
    status: Status = "warn" if found.undecided_s > UNDECIDED_WARN_S else "ok"
    return _finding("decisions", status, detail, "the owners are behind: look for `cannot be decided` in their logs")


def _schedules(stalled: Sequence[StalledJob]) -> Finding:
    """Of jobs that wait for a decision it is found out whether this build could make it."""
    unreadable = [(job, error) for job in stalled if (error := _unreadable(job)) is not None]
    if not unreadable:
        return _finding("schedules", "ok", "every job that is due for its next occurrence can be read")
    (oldest, error), count = unreadable[0], len(unreadable)
    many = f"at least {count}" if len(stalled) == STALLED_LIMIT else str(count)
    detail = (
        f"{many} jobs cannot fire again, since {oldest.next_fire_at:%Y-%m-%d %H:%M:%S} UTC job {oldest.job_id}: {error}"
    )
    remedy = "run the newest server everywhere, else give the job a schedule with `fencepost jobs update`"
    return _finding("schedules", "fail", detail, remedy)


def _unreadable(job: StalledJob) -> str | None:
    """Why the job's schedule cannot be read; None when it can."""
    try:
        spec = msgspec.json.decode(job.definition, type=JobSpec)
        parse_schedule(spec.schedule, job_id=job.job_id)
    except (InvalidSchedule, msgspec.ValidationError) as error:
        return str(error)
    return None


def _overdue(found: RunsCheckup) -> Finding:
    if not found.overdue:
        return _finding("overdue", "ok", "no run waits beyond its time")
    detail = f"{found.overdue} due runs wait for a worker, the oldest for {found.overdue_s:.0f} s"
    remedy = f"start workers for queue {found.overdue_queue}, or see `fencepost why {found.overdue_run_id}`"
    return _finding("overdue", "warn" if found.overdue_s > OVERDUE_WARN_S else "ok", detail, remedy)


def _expired(found: RunsCheckup) -> Finding:
    if not found.expired:
        return _finding("leases", "ok", "none has expired without being ended")
    status = _by(found.expired_s, EXPIRED_WARN_S, EXPIRED_FAIL_S)
    detail = f"{found.expired} leases have expired and were not ended, for {found.expired_s:.0f} s at most"
    return _finding("leases", status, detail, "owners end them: see that every partition has one, and its log")


def _dead(found: RunsCheckup) -> Finding:
    if not found.dead_last_hour:
        return _finding("dead", "ok", "no run died within the hour")
    remedy = "see why with `fencepost dead list`, then replay them with `fencepost dead replay`"
    return _finding("dead", "warn", f"{found.dead_last_hour} runs died within the hour", remedy)


def _outbox(checkup: Checkup) -> Finding:
    detail = f"{checkup.outbox_rows} rows wait, the oldest for {checkup.outbox_s:.0f} s"
    remedy = "start the relay role; when it runs, Kafka does not take its records: see its log"
    return _finding("outbox", _by(checkup.outbox_s, OUTBOX_WARN_S, OUTBOX_FAIL_S), detail, remedy)


def _paused(pauses: Sequence[Pause]) -> Finding:
    if not pauses:
        return _finding("pauses", "ok", "neither the tenant nor a queue is paused")
    named = ", ".join("the tenant" if pause.queue is None else f"queue {pause.queue}" for pause in pauses[:10])
    more = f" and {len(pauses) - 10} more" if len(pauses) > 10 else ""
    return _finding(
        "pauses", "warn", f"paused: {named}{more}", "resume what should run, with `fencepost queues resume`"
    )


def _tzdata(versions: set[str]) -> Finding:
    others = sorted(versions - {TZDATA_VERSION})
    if not others:
        return _finding("tzdata", "ok", f"every pending occurrence was computed with {TZDATA_VERSION}, as here")
    detail = f"this server has {TZDATA_VERSION}, pending occurrences were computed with {', '.join(others)} too"
    remedy = "run one version everywhere; an owner moves its jobs to its own when it takes their partition over"
    return _finding("tzdata", "warn", detail, remedy)


def standbys_finding(found: Standbys) -> Finding:
    if found.sync_missing:
        remedy = "start the standby, or take it out of synchronous_standby_names: until then no commit returns"
        return _finding("standbys", "fail", "commits wait for a synchronous standby, and none is there", remedy)
    if not found.connected:
        return _finding("standbys", "ok", "there is none")
    detail = (
        f"{found.connected}, {found.synchronous} of them synchronous; the last is {found.replay_lag_s:.1f} s behind"
    )
    remedy = "see whether its disk or its network is slow, or its replay is paused: a failover waits for it"
    return _finding("standbys", "warn" if found.replay_lag_s > STANDBY_WARN_S else "ok", detail, remedy)


def snapshot_finding(found: Snapshot | None) -> Finding:
    """Dead rows stay while somebody may still see them, and every lease leaves some."""
    if found is None or found.held_s is None:
        return _finding("snapshots", "ok", "no session keeps vacuum from its work")
    detail = f"{found.holder} keeps vacuum from what {found.transactions} transactions left, for {found.held_s:.0f} s"
    status = _by(found.held_s, SNAPSHOT_WARN_S, SNAPSHOT_FAIL_S)
    return _finding("snapshots", status, detail, "end it: SELECT pg_terminate_backend(…), or ROLLBACK PREPARED")


def _by(age_s: float, warn_s: float, fail_s: float) -> Status:
    return "fail" if age_s > fail_s else "warn" if age_s > warn_s else "ok"


def _finding(check: str, status: Status, detail: str, remedy: str | None = None) -> Finding:
    return Finding(check=check, status=status, detail=detail, remedy=None if status == "ok" else remedy)
