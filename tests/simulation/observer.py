"""Judges what was seen, with a model of its own: what workers were told, what was committed, and the topics.

It knows what a run's life may look like and nothing of how we make it so; it imports nothing of the product's protocol.
Every rule can fail: `test_mutants.py` breaks the protocol on purpose, a rule at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from schemas.commands import Command, CreateJob
from tests.simulation.postgres import Claim, Commit
from tests.simulation.rows import Told
from tests.simulation.scheduler import START, START_US
from tests.simulation.worker import Entry

NEXT_EVENTS = {
    "": {"run_scheduled", "run_held"},
    "run_scheduled": {"run_scheduled", "run_leased", "run_held", "run_cancelled", "run_skipped"},
    "run_held": {"run_held", "run_scheduled", "run_skipped", "run_cancelled"},
    "run_leased": {
        "run_completed", "run_retried", "run_released", "run_dead", "run_cancelled", "run_held", "run_cancel_requested"
    },
    "run_cancel_requested": {"run_completed", "run_cancelled"},
    "run_retried": {"run_leased", "run_held", "run_cancelled"},
    "run_released": {"run_leased", "run_held", "run_cancelled", "run_skipped"},
    "run_completed": set(),
    "run_dead": set(),
    "run_skipped": set(),
    "run_cancelled": set(),
}  # fmt: skip
LEASES = ("run_leased", "run_cancel_requested")
OVER = ("run_completed", "run_dead", "run_skipped", "run_cancelled")


class Violation(NamedTuple):
    """rule: the promise that was broken. subject: a run, job, command or partition."""

    rule: str
    subject: Any
    detail: str


@dataclass
class Seen:
    """A whole simulation.

    sent: of each command its partition and the offset of its first record. left: what is not over. shards_failed: a
    shard was away, or the answer to a commit got lost.
    """

    commits: list[Commit]
    entries: list[Entry]
    published: list[list[Told]]
    sent: dict[UUID, tuple[int, int, Command]]
    left: list[str] = field(default_factory=list)
    deadlocks: int = 0
    shards_failed: bool = False

    @cached_property
    def told(self) -> list[Told]:
        """Every event, in the order of commits."""
        return [told for commit in self.commits for told in commit.told]

    @cached_property
    def lives(self) -> dict[UUID, list[Told]]:
        """Of every run its events, in the order of commits."""
        lives: dict[UUID, list[Told]] = defaultdict(list)
        for told in self.told:
            if told.run_id is not None:
                lives[told.run_id].append(told)
        return lives

    @cached_property
    def creations(self) -> dict[UUID, CreateJob]:
        commands = (command for _, _, command in self.sent.values())
        return {command.job_id: command for command in commands if isinstance(command, CreateJob)}

    def acts(self, kind: str) -> Iterator[tuple[Commit, tuple[Any, ...]]]:
        for commit in self.commits:
            for act in commit.acts:
                if act[0] == kind:
                    yield commit, act

    def of_kind(self, *kinds: str) -> Iterable[Entry]:
        return (entry for entry in self.entries if entry.kind in kinds)


Found = Iterator[tuple[Any, str]]


def everything_converges(seen: Seen) -> Found:
    """Once the faults are over everything ends within bounded time: nothing waits, nothing is lost."""
    for what in seen.left:
        yield what.split(":")[0], what


def nobody_deadlocks(seen: Seen) -> Found:
    """Locks are taken in one order."""
    if seen.deadlocks:
        yield "ledger", f"{seen.deadlocks} deadlocks"


def old_epochs_write_nothing(seen: Seen) -> Found:
    """Who claims an epoch is the last who took the partition over, and on that shard; epochs only grow."""
    owned: dict[int, Claim] = {}
    for commit in seen.commits:
        for claim in commit.claims:
            if owned.get(claim.partition) != claim:
                yield f"partition {claim.partition}", f"{claim} wrote, the owner is {owned.get(claim.partition)}"
        for act in commit.acts:
            if act[0] != "taken over":
                continue
            _, partition, epoch, *_ = act
            before = owned.get(partition)
            if before is not None and epoch <= before.epoch:
                yield f"partition {partition}", f"taken over under epoch {epoch} after {before.epoch}"
            owned[partition] = Claim(commit.shard, partition, epoch)


def every_command_once_in_order(seen: Seen) -> Found:
    """Each command has one outcome, and those of a job come in the order of the topic."""
    last: dict[UUID, int] = {}
    known: set[UUID] = set()
    for _, (_, command_id, outcome) in seen.acts("outcome"):
        partition, offset, command = seen.sent[command_id]
        if command_id in known:
            yield command_id, f"{type(command).__name__} has a second outcome: {outcome}"
        elif offset < last.get(command.job_id, 0):
            yield command_id, f"offset {offset} of partition {partition} came after {last[command.job_id]}"
        known.add(command_id)
        last[command.job_id] = max(offset, last.get(command.job_id, 0))
    if not seen.left:
        for command_id in seen.sent.keys() - known:
            yield command_id, f"{type(seen.sent[command_id][2]).__name__} was never applied"


def offsets_move_with_effects(seen: Seen) -> Found:
    """A new owner begins behind every command that has had its effect."""
    applied: dict[int, int] = {}
    for commit in seen.commits:
        for act in commit.acts:
            if act[0] == "outcome":
                partition, offset, _ = seen.sent[act[1]]
                applied[partition] = max(applied.get(partition, -1), offset)
            elif act[0] == "taken over" and act[4] <= applied.get(act[1], -1):
                yield f"partition {act[1]}", f"taken over at offset {act[4]}, {applied[act[1]]} was applied"


def lives_are_legal(seen: Seen) -> Found:
    """Each event follows one that it may follow: above all no lease while another one lives, and none after the end."""
    for run_id, life in seen.lives.items():
        before = ""
        for told in life:
            returns = before == "run_cancelled" and told.event in NEXT_EVENTS[""]  # an edit that was taken back
            if told.event not in NEXT_EVENTS[before] and not returns:
                yield run_id, f"{told.event} after {before or 'nothing'}: {story(life)}"
            before = told.event


def versions_are_contiguous(seen: Seen) -> Found:
    """A run's versions grow by one with each event, but for a run that an edit brings back."""
    for run_id, life in seen.lives.items():
        for before, after in pairwise(life):
            is_new = before.event == "run_cancelled" and after.version > before.version
            if after.version != before.version + 1 and not is_new:
                yield run_id, f"version {after.version} after {before.version}: {story(life)}"


def tokens_grow(seen: Seen) -> Found:
    for run_id, life in seen.lives.items():
        tokens = [told.lease_token or 0 for told in life if told.event == "run_leased"]
        if tokens != sorted(set(tokens)):
            yield run_id, f"lease tokens {tokens}"


def events_are_published_in_order(seen: Seen) -> Found:
    """The topic has every event that was committed, each run's in the order of its versions; repetitions aside."""
    published = [told for log in seen.published for told in log]
    newest: dict[UUID, int] = {}
    met: set[tuple[UUID, int]] = set()
    for told in published:
        if told.run_id is None:
            continue
        key = (told.run_id, told.version)
        if key not in met and told.version < newest.get(told.run_id, 0):
            yield told.run_id, f"version {told.version} came after {newest[told.run_id]}"
        met.add(key)
        newest[told.run_id] = max(told.version, newest.get(told.run_id, 0))
    if not seen.left:
        for told in seen.told:
            if told.run_id is not None and (told.run_id, told.version) not in met:
                yield told.run_id, f"{told.event} was never published: {story(seen.lives[told.run_id])}"


def one_completion_accepted(seen: Seen) -> Found:
    """At most one completion of a run is recorded, and whoever was told so is the one."""
    completed = {
        run_id: [told.lease_token for told in life if told.event == "run_completed"]
        for run_id, life in seen.lives.items()
    }
    for run_id, tokens in completed.items():
        if len(tokens) > 1:
            yield run_id, f"completed under tokens {tokens}: {story(seen.lives[run_id])}"
    for entry in seen.of_kind("answered"):
        if entry.status == 200 and entry.what == "complete" and entry.token not in completed[entry.run_id]:  # type: ignore[index]
            yield entry.run_id, f"accepted under token {entry.token}, recorded under {completed[entry.run_id]}"  # type: ignore[index]


def nothing_is_early(seen: Seen) -> Found:
    """No lease and no handler before the run was due."""
    due: dict[UUID, datetime] = {}
    for told in seen.told:
        if told.run_id is None:
            continue
        if told.event == "run_leased" and told.at < due[told.run_id]:
            yield told.run_id, f"leased at {told.at:%S.%f}, due {due[told.run_id]:%S.%f}"
        if told.due_at is not None:
            due[told.run_id] = told.due_at
    for entry in seen.of_kind("started"):
        if entry.due_at is not None and entry.at < entry.due_at:
            yield entry.run_id, f"started at {entry.at:%S.%f}, due {entry.due_at:%S.%f}"


def leases_last_as_promised(seen: Seen) -> Found:
    """A lease is given up for its time only once that is over, and nothing is accepted of it from then on."""
    promised: dict[tuple[UUID, int], datetime] = {}
    for commit in seen.commits:
        for act in commit.acts:
            if act[0] == "extended":
                promised[act[1], act[2]] = act[3]
        for told in commit.told:
            if told.run_id is None or told.lease_token is None:
                continue
            lease = (told.run_id, told.lease_token)
            if told.event == "run_leased":
                assert told.lease_expires_at is not None
                promised[lease] = told.lease_expires_at
                continue
            until = promised.get(lease)
            is_expiry = told.reason in ("lease expired", "timed out")
            if until is None or told.event in ("run_cancel_requested", "run_scheduled"):
                continue
            if is_expiry and told.at < until:
                yield told.run_id, f"given up at {told.at:%S.%f}, leased until {until:%S.%f}"
            if told.event == "run_completed" and told.at >= until:
                yield told.run_id, f"completed at {told.at:%S.%f}, leased until {until:%S.%f}"


def attempts_are_bounded(seen: Seen) -> Found:
    """No run is leased more often than its job allows."""
    for run_id, life in seen.lives.items():
        most = seen.creations[life[0].job_id].spec.max_attempts
        for told in life:
            if told.event == "run_leased" and (told.attempt or 0) > most:
                yield run_id, f"attempt {told.attempt} of {most}"


def overlap_is_kept(seen: Seen) -> Found:
    """Of a job that does not allow overlap one run is leased at a time."""
    leased: dict[UUID, UUID] = {}
    for told in seen.told:
        if told.run_id is None or seen.creations[told.job_id].spec.overlap == "allow":
            continue
        other = leased.get(told.job_id)
        if told.event == "run_leased":
            if other is not None and other != told.run_id:
                yield told.job_id, f"{told.run_id} was leased while {other} was"
            leased[told.job_id] = told.run_id
        elif other == told.run_id and told.event not in LEASES:
            del leased[told.job_id]


def nothing_starts_of_paused_jobs(seen: Seen) -> Found:
    """Between a pause and its end, and after a deletion, nothing of the job is leased."""
    stopped: dict[UUID, str] = {}
    for told in seen.told:
        if told.event in ("job_paused", "job_deleted"):
            stopped[told.job_id] = told.event
        elif told.event == "job_resumed":
            stopped.pop(told.job_id, None)
        elif told.event == "run_leased" and told.job_id in stopped:
            yield told.job_id, f"{told.run_id} was leased after {stopped[told.job_id]}"


def occurrences_are_decided_once(seen: Seen) -> Found:
    """Of a job that nobody edited each occurrence made a run, or was skipped in a range: one of them, once."""
    events: dict[UUID, list[Told]] = defaultdict(list)
    for told in seen.told:
        events[told.job_id].append(told)
    for job_id, life in events.items():
        every_s = seen.creations[job_id].spec.schedule.get("everySeconds")
        kinds = {told.event for told in life}
        if every_s is None or "job_updated" in kinds:
            continue
        decided: dict[datetime, int] = defaultdict(int)
        step = timedelta(seconds=every_s)
        for fire in _decisions(life, step):
            decided[fire] += 1
        for fire, times in decided.items():
            if times > 1:
                yield job_id, f"{fire:%H:%M:%S.%f} was decided {times} times"
        if "job_deleted" not in kinds and not seen.left:
            created = life[0].scheduled_for
            end_at = datetime.fromisoformat(seen.creations[job_id].spec.schedule["endAt"])
            assert created is not None
            fire = created + step
            while fire < end_at:
                if fire not in decided:
                    yield job_id, f"{fire:%H:%M:%S.%f} was never decided"
                fire += step


def _decisions(life: list[Told], step: timedelta) -> Iterator[datetime]:
    """The occurrences that a job's events decide, as often as they do."""
    met: set[UUID] = set()
    for told in life:
        if told.event == "occurrences_skipped":
            first, last = told.scheduled_for, told.due_at
            assert first is not None
            assert last is not None
            while first <= last:
                yield first
                first += step
        elif told.event == "run_scheduled" and told.run_id not in met:
            assert told.run_id is not None
            assert told.scheduled_for is not None
            met.add(told.run_id)
            if told.reason != "triggered":
                yield told.scheduled_for


def repeated_calls_get_the_same(seen: Seen) -> Found:
    """Whoever repeats a lease call is told of every lease that an earlier try has got him and that still lives.

    But for those on a shard that was away or lost its word: they stay unknown until they expire.
    """
    if seen.shards_failed:
        return
    committed = {
        (commit.shard, told.row): commit.at_us
        for commit in seen.commits
        for told in commit.told
        if told.event == "run_leased"
    }
    asked: dict[str, datetime] = {}
    repeated: dict[str, datetime] = {}
    for entry in seen.of_kind("asked", "repeats", "told"):
        if entry.kind == "asked":
            asked[entry.worker] = entry.at
        elif entry.kind == "repeats":
            repeated[entry.worker] = entry.at
        elif entry.repeated:
            since, until = asked[entry.worker], repeated[entry.worker]
            for run_id, token in _leases_of(seen, entry.worker, since, until, entry.at, committed):
                if (run_id, token) not in entry.told:
                    yield run_id, f"{entry.worker} was not told of token {token} at {entry.at:%S.%f}"


def _leases_of(
    seen: Seen, worker: str, since: datetime, until: datetime, now: datetime, committed: dict[tuple[int, int], int]
) -> Iterator[tuple[UUID, int]]:
    """What a worker got between since and until and still has now."""
    for run_id, life in seen.lives.items():
        for told, after in zip(life, [*life[1:], None], strict=True):
            if told.event != "run_leased" or told.worker_id != worker or told.at < since:
                continue
            assert told.lease_token is not None
            assert told.lease_expires_at is not None
            is_committed = instant(committed[told.shard, told.row]) < until
            if is_committed and told.lease_expires_at > now and (after is None or after.at > now):
                yield run_id, told.lease_token


def decided_through_is_true(seen: Seen) -> Found:
    """What an owner says to be decided is so for all jobs that it found: changed last before its takeover."""
    changed: dict[UUID, int] = {}
    taken: dict[int, int] = {}
    for number, commit in enumerate(seen.commits):
        for act in commit.acts:
            if act[0] == "taken over":
                taken[act[1]] = number
            elif act[0] == "decided through":
                _, partition, epoch, through, undecided = act
                for job_id in undecided:
                    if changed.get(job_id, number) < taken[partition]:
                        yield job_id, f"is not decided up to {through}, which epoch {epoch} has said"
        changed |= {told.job_id: number for told in commit.told if told.run_id is None}


RULES: dict[str, Callable[[Seen], Found]] = {
    rule.__name__: rule
    for rule in (
        old_epochs_write_nothing,
        lives_are_legal,
        tokens_grow,
        versions_are_contiguous,
        one_completion_accepted,
        leases_last_as_promised,
        nothing_is_early,
        attempts_are_bounded,
        overlap_is_kept,
        nothing_starts_of_paused_jobs,
        occurrences_are_decided_once,
        decided_through_is_true,
        every_command_once_in_order,
        offsets_move_with_effects,
        repeated_calls_get_the_same,
        events_are_published_in_order,
        nobody_deadlocks,
        everything_converges,
    )
}


def judge(seen: Seen) -> list[Violation]:
    """Every broken promise; none in a sound protocol."""
    return [Violation(name, subject, detail) for name, rule in RULES.items() for subject, detail in rule(seen)]


def instant(at_us: int) -> datetime:
    return START + timedelta(microseconds=at_us - START_US)


def story(life: list[Told]) -> str:
    return " ".join(f"{told.event.removeprefix('run_')}@{told.at:%S.%f}" for told in life)
