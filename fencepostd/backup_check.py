"""`fencepostd backup-check`: what must be backed up, what need not be, and whether a restored ledger would be whole.

Findings are pure; what they are made of is read of every shard and of Kafka at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from ledger.backups import Keeping, read_consumed, read_keeping, read_tzdata
from ledger.connection import Connection
from ledger.shard_map import HOME
from ledger.shards import open_shards, told
from schemas.errors import LedgerUnavailable
from schemas.http_explanations import Finding
from schemas.zones import TZDATA_VERSION
from streams.topic_keeping import TopicKeeping, read_topic_keeping
from streams.topics import Topics

LOOK_TIMEOUT_S = 60.0
SKEW_WARN_S = 5.0
ARCHIVE_AGE_WARN_S = 600.0

Status = Literal["ok", "warn", "fail"]


class ShardKeeping(NamedTuple):
    """looked_at: by this process's clock. consumed: the next command of each of its partitions.

    computed_with, rules_kept: versions of tzdata.
    """

    keeping: Keeping
    looked_at: datetime
    consumed: Mapping[int, int]
    computed_with: set[str]
    rules_kept: set[str]


class Installation(NamedTuple):
    """What is looked at: the shards by their numbers, and the two topics that a restored ledger goes on from."""

    shards: Mapping[int, ShardKeeping]
    commands: TopicKeeping
    run_events: TopicKeeping


async def look(dsn: str, bootstrap: str, topics: Topics, kafka_config: Mapping[str, Any] | None = None) -> Installation:
    """Raises LedgerUnavailable or KafkaUnavailable when a part is away: of that nothing can be promised."""
    commands, run_events, shards = await asyncio.gather(
        asyncio.to_thread(read_topic_keeping, bootstrap, topics.commands, kafka_config),
        asyncio.to_thread(read_topic_keeping, bootstrap, topics.run_events, kafka_config),
        _look_at_shards(dsn),
    )
    return Installation(shards, commands, run_events)


async def _look_at_shards(dsn: str) -> dict[int, ShardKeeping]:
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S), open_shards(dsn, size=1) as shards:
            answers = await shards.ask_each(_look_at_shard)
    except TimeoutError:
        raise LedgerUnavailable(f"the ledger did not answer within {LOOK_TIMEOUT_S:g} s") from None
    return {number: told(number, answer) for number, answer in answers.items()}


async def _look_at_shard(conn: Connection) -> ShardKeeping:
    keeping, looked_at = await read_keeping(conn), datetime.now(UTC)
    return ShardKeeping(keeping, looked_at, await read_consumed(conn), *await read_tzdata(conn))


# --- what there is to back up ---


def explanation(found: Installation) -> Iterator[str]:
    """What must be backed up and what need not be, line by line, with the figures of this installation."""
    commands, events = found.commands, found.run_events
    yield "Back up: the Postgres database of every shard, each by itself: a base backup with its WAL, or pg_dump"
    for number, shard in sorted(found.shards.items()):
        holds = "tokens, the map of shards; jobs, runs, offsets" if number == HOME else "jobs, runs, offsets"
        yield f"    shard {number:<3} {shard.keeping.server:<32} {_size(shard.keeping.size_bytes):>9}  {holds}"
    yield "Need not be backed up"
    yield "    timing state (folders of `run streams`): rebuilt from the ledger at the next takeover"
    yield f"    history (folder of `run history`): rebuilt from {events.topic}, which keeps {_kept(events)};"
    yield "        to keep what is older, stop that role and copy its folder"
    yield "Kafka's topics have replicas instead of backups. Lost with all of them:"
    yield f"    {commands.topic}: what was commanded since the backup; it keeps {_kept(commands)}; run `init`"
    yield f"    {events.topic}: what the history had not read yet, and the history itself when that is lost too"
    yield "    the others: reasons of rejected commands, and hints, which are sent again"
    yield "After a restore, before any role starts: `fencepostd restored`, for each restored shard"


# --- whether it would be whole ---


def findings(found: Installation, backup_age: timedelta) -> Iterator[Finding]:
    """backup_age: how old the backup may be from which the ledger would be restored."""
    for number, shard in sorted(found.shards.items()):
        yield durability(number, shard.keeping)
        yield wal_archive(number, shard.keeping)
    yield clocks(found.shards)
    yield tzdata(found.shards.values())
    yield commands_kept(found.commands, backup_age)
    yield commands_read(found.commands, found.shards.values())
    yield events_kept(found.run_events, backup_age)
    yield replicas([found.commands, found.run_events])


def durability(number: int, keeping: Keeping) -> Finding:
    """Whether what was answered as accepted is on a disk."""
    check = f"shard {number}: durable"
    off = [name for name in ("fsync", "full_page_writes") if not getattr(keeping, name)]
    off += ["synchronous_commit"] if keeping.synchronous_commit == "off" else []
    if off:
        detail = f"{', '.join(off)} is off: a crash loses what was accepted, or the whole database"
        return _finding(check, "fail", detail, "set it to on, and restart the server")
    return _finding(check, "ok", f"what is committed is on disk (synchronous_commit is {keeping.synchronous_commit})")


def wal_archive(number: int, keeping: Keeping) -> Finding:
    """Whether what is committed after a backup was made can be had again."""
    check = f"shard {number}: WAL archive"
    if keeping.archive_mode == "off":
        if keeping.receivers:
            return _finding(check, "ok", f"{keeping.receivers} receive its WAL as it is written; none is archived")
        detail = "there is none, and nobody receives the WAL: what came after the last backup goes with the server"
        remedy = "set archive_mode and archive_command, or run pg_receivewal or a standby; wal_level must be replica"
        return _finding(check, "warn", detail, remedy)
    if keeping.failed_at and (keeping.archived_at is None or keeping.failed_at > keeping.archived_at):
        detail = f"the last segment could not be archived, at {keeping.failed_at:%Y-%m-%d %H:%M:%S} UTC"
        return _finding(check, "fail", detail, "see the server's log; it keeps all WAL until archiving works again")
    if keeping.archived_at is None:
        return _finding(check, "warn", "nothing was archived yet", "SELECT pg_switch_wal(), and look again")
    age_s = (keeping.now - keeping.archived_at).total_seconds()
    detail = f"the last segment was archived {age_s:.0f} s ago"
    if not keeping.archive_timeout_s:
        remedy = "set archive_timeout: a segment that is not full is not archived, however old"
        return _finding(check, "warn", f"{detail}, and archive_timeout is not set", remedy)
    is_old = age_s > max(ARCHIVE_AGE_WARN_S, 3 * keeping.archive_timeout_s)
    return _finding(check, "warn" if is_old else "ok", detail, "see whether archive_command hangs")


def clocks(shards: Mapping[int, ShardKeeping]) -> Finding:
    """`restored` makes epochs and tokens grow by the clock of the database's server."""
    skews = {number: (each.keeping.now - each.looked_at).total_seconds() for number, each in shards.items()}
    worst = max(skews, key=lambda number: abs(skews[number]))
    detail = f"the server of shard {worst} is {skews[worst]:+.1f} s off this machine's clock"
    remedy = "let NTP set both: the server on which a backup is restored must not be behind the one that it was made on"
    return _finding("clocks", "warn" if abs(skews[worst]) > SKEW_WARN_S else "ok", detail, remedy)


def tzdata(shards: Iterable[ShardKeeping]) -> Finding:
    """An owner with another tzdata can place a cursor only by the rules that it was computed with."""
    lost = sorted({version for shard in shards for version in shard.computed_with - shard.rules_kept})
    if lost:
        detail = f"of {', '.join(lost)}, by which occurrences were computed, no rules are kept"
        remedy = "start an owner with that version once, which keeps its rules, before the next upgrade of tzdata"
        return _finding("tzdata", "warn", detail, remedy)
    return _finding("tzdata", "ok", f"the ledger has the rules of time that it goes by; here is {TZDATA_VERSION}")


def commands_kept(topic: TopicKeeping, backup_age: timedelta) -> Finding:
    """A restored ledger applies again what was commanded since: the topic must still have it."""
    hours = backup_age.total_seconds() / 3_600
    if topic.retention_s is not None and topic.retention_s < backup_age.total_seconds():
        detail = f"{topic.topic} keeps {_kept(topic)}, and the backup may be {hours:g} h old: what came first is lost"
        return _finding("commands: kept", "fail", detail, "let its retention.ms be longer, or back up more often")
    if topic.retention_bytes is not None:
        detail = f"{topic.topic} keeps {_kept(topic)}: on a busy day that may be less than {hours:g} h"
        return _finding("commands: kept", "warn", detail, "set its retention.bytes to -1, and bound it by retention.ms")
    return _finding("commands: kept", "ok", f"{topic.topic} keeps {_kept(topic)}; the backup may be {hours:g} h old")


def commands_read(topic: TopicKeeping, shards: Iterable[ShardKeeping]) -> Finding:
    """Whether the ledger as it is could go on reading: a backup of it could not if it cannot."""
    consumed = {partition: offset for shard in shards for partition, offset in shard.consumed.items()}
    lost = {p: topic.begins[p] - at for p, at in consumed.items() if p in topic.begins and at < topic.begins[p]}
    ahead = sorted(p for p, at in consumed.items() if at > topic.ends.get(p, 0))
    if ahead:
        detail = f"of partitions {ahead} the ledger has read further than {topic.topic} goes: it is another topic"
        return _finding("commands: read", "fail", detail, "run `fencepostd init`, which sets the offsets back")
    if lost:
        detail = f"{sum(lost.values())} records of partitions {sorted(lost)} are gone and were not applied"
        remedy = "start owners; what was not applied must be sent again by its producers"
        return _finding("commands: read", "fail", detail, remedy)
    waiting = sum(topic.ends[p] - at for p, at in consumed.items() if p in topic.ends)
    return _finding("commands: read", "ok", f"{waiting} records are not applied yet, and the topic has all of them")


def events_kept(topic: TopicKeeping, backup_age: timedelta) -> Finding:
    """Only the history goes back no further than this; the ledger does not need it."""
    hours = backup_age.total_seconds() / 3_600
    is_short = topic.retention_s is not None and topic.retention_s < backup_age.total_seconds()
    detail = f"{topic.topic} keeps {_kept(topic)}: as far back goes a history that is rebuilt"
    remedy = f"let its retention.ms be longer than {hours:g} h, or back up the history's folder"
    return _finding("events: kept", "warn" if is_short else "ok", detail, remedy)


def replicas(topics: Sequence[TopicKeeping]) -> Finding:
    alone = [topic.topic for topic in topics if topic.replicas < 2]
    if alone:
        detail = f"{' and '.join(alone)} are on one broker's disk each"
        return _finding("topics: replicas", "warn", detail, "run three brokers, and reassign with three replicas")
    least = min(topic.replicas for topic in topics)
    return _finding("topics: replicas", "ok", f"each partition has at least {least}")


def lines(found: Sequence[Finding]) -> Iterator[str]:
    """The findings as they are printed, each that is not ok with its remedy."""
    for each in found:
        yield f"{each.status:<5} {each.check:<22} {each.detail}"
        if each.remedy:
            yield f"      {'':<22} {each.remedy}"


def _finding(check: str, status: Status, detail: str, remedy: str | None = None) -> Finding:
    return Finding(check=check, status=status, detail=detail, remedy=None if status == "ok" else remedy)


def _kept(topic: TopicKeeping) -> str:
    """How long, in words."""
    time = "records for ever" if topic.retention_s is None else f"{topic.retention_s / 3_600:g} h"
    return time if topic.retention_bytes is None else f"{time} and at most {_size(topic.retention_bytes)} a partition"


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 1_000:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1_000
    return f"{size_bytes:.1f} GB"
