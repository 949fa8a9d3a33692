"""The mutants: each breaks one promise of the product on purpose, and names the rules that must find it.

A replacement whose text is not in its file exactly once is an error, as when the source has changed: then the mutant
must be written anew. tests/chaos/mutants/test_patches.py looks at that without running anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

TrialName = Literal["late worker", "long handler", "policies", "outages", "frozen owner", "returning owner"]


class Replacement(NamedTuple):
    """path: from the root of the tree."""

    path: str
    old: str
    new: str


class Stale(Exception):
    """The source has changed under a mutant."""


class Mutant(NamedTuple):
    """rules: of which at least one must be broken in its trial."""

    name: str
    trial: TrialName
    rules: tuple[str, ...]
    replacements: tuple[Replacement, ...]

    def apply(self, tree: Path) -> None:
        """Break a copy of the source. Raises Stale."""
        for each in self.replacements:
            file = tree / each.path
            text = file.read_text()
            if (count := text.count(each.old)) != 1:
                raise Stale(f"mutant {self.name!r}: {each.path} has {count} times {each.old!r}")
            file.write_text(text.replace(each.old, each.new))


_LEASES, _COMPLETIONS, _FENCE = "ledger/leases.py", "ledger/completions.py", "ledger/fence.py"
_OWNER, _APPLIER = "streams/partition_owner.py", "streams/command_applier.py"

_NO_FENCE = Replacement(
    _FENCE,
    'FENCE_OWNER = "SELECT fence_owner(%s, %s, %s), now()"',
    'FENCE_OWNER = """SELECT p.consumed_offset, now() FROM partitions p,'
    ' (SELECT %s::int, %s::bigint, %s::text) AS f (p, e, o) WHERE p.partition = f.p"""',
)
_NO_FENCES = Replacement(
    _FENCE,
    "SELECT now(), fence_owner(partition, epoch, owner)\nFROM unnest",
    "SELECT now(), count(partition)\nFROM unnest",
)
_NO_COMPARE_AND_SET = Replacement(
    "ledger/advances.py",
    "WHERE j.job_id = a.job_id AND j.version = a.version AND j.next_fire_at = a.fired_at AND j.state = 'active'",
    "WHERE j.job_id = a.job_id AND j.state = 'active'",
)

MUTANTS = (
    Mutant(
        "token check removed: a late worker completes another's attempt",
        "late worker",
        ("completed_at_most_once",),
        (
            Replacement(
                _COMPLETIONS,
                "WHERE r.run_id = c.run_id AND r.lease_token = c.lease_token AND r.state = 'leased'\n"
                "      AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now()) AND {OF_CALLER}\n"
                "      AND r.cancel_reason",
                "WHERE r.run_id = c.run_id AND r.state = 'leased'\n"
                "      AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now()) AND {OF_CALLER}\n"
                "      AND r.cancel_reason",
            ),
        ),
    ),
    Mutant(
        "lease tokens do not grow",
        "late worker",
        ("tokens_only_grow",),
        (
            Replacement(
                _LEASES,
                "lease_token = greatest(r.lease_token, p.token_floor) + 1,",
                "lease_token = greatest(r.lease_token, p.token_floor, 1),",
            ),
        ),
    ),
    Mutant(
        "a completion is accepted whoever has completed the run",
        "late worker",
        ("completed_at_most_once",),
        (
            Replacement(
                "api/outcome_kinds.py",
                "return Completed(await ends.completed(identity, ask, until))",
                "return Completed(ask.run_id)",
            ),
        ),
    ),
    Mutant(
        "a leased run is leased again",
        "late worker",
        ("lives_are_legal",),
        (Replacement(_LEASES, "WHEN r.state <> 'pending' OR r.due_at >", "WHEN r.due_at >"),),
    ),
    Mutant(
        "leased before it is due",
        "late worker",
        ("nothing_is_early",),
        (
            Replacement(
                _LEASES,
                "WHEN r.state <> 'pending' OR r.due_at > coalesce(%(now)s::timestamptz, now())\n          OR ",
                "WHEN r.state <> 'pending'\n          OR ",
            ),
        ),
    ),
    Mutant(
        "an attempt is not charged",
        "late worker",
        ("attempts_are_charged",),
        (Replacement(_LEASES, "attempt = r.attempt + 1,", "attempt = greatest(r.attempt, 1::smallint),"),),
    ),
    Mutant(
        "leases that are over are never ended",
        "late worker",
        ("nothing_is_lost",),
        (
            Replacement(
                _COMPLETIONS,
                "WHERE r.state = 'leased' AND r.lease_expires_at <= coalesce(",
                "WHERE false AND r.lease_expires_at <= coalesce(",
            ),
        ),
    ),
    Mutant(
        "a completion tells nobody",
        "late worker",
        ("nothing_is_lost",),
        (
            Replacement(
                _COMPLETIONS,
                '        "run_completed",\n        "ended",',
                '        "run_completed",\n        "ended WHERE false",',
            ),
        ),
    ),
    Mutant(
        "overlap unchecked",
        "policies",
        ("one_lease_a_job",),
        (Replacement("ledger/runs.py", "{payload}, j.overlap, j.timeout_s,", "{payload}, 0, j.timeout_s,"),),
    ),
    Mutant(
        "a job's pause is ignored",
        "policies",
        ("pauses_hold",),
        (
            Replacement(
                "streams/job_commands.py",
                "await pause_jobs(tx, [command.job_id for command in active], now=tx.now)",
                "await pause_jobs(tx, [], now=tx.now)",
            ),
        ),
    ),
    Mutant(
        "a queue's pause is ignored",
        "policies",
        ("pauses_hold",),
        (Replacement(_LEASES, "ELSE r.overlap {overlap} AND {NOT_PAUSED} AND", "ELSE r.overlap {overlap} AND"),),
    ),
    Mutant(
        "an edit leaves the run of the old schedule",
        "policies",
        ("edits_hold",),
        (
            Replacement(
                "ledger/edits.py",
                "WHERE r.run_id = c.replaced_run_id AND r.run_id IS DISTINCT FROM c.run_id\n",
                "WHERE false AND r.run_id = c.replaced_run_id\n",
            ),
            Replacement(
                "ledger/unstarted_runs.py",
                "WHERE partition = %s AND job_id = ANY (%b) AND state",
                "WHERE false AND partition = %s AND job_id = ANY (%b) AND state",
            ),
        ),
    ),
    Mutant(
        "a lease ends although heartbeats have extended it",
        "long handler",
        ("nothing_runs_twice_unprovoked",),
        (
            Replacement(
                _COMPLETIONS,
                "WHERE r.state = 'leased' AND r.lease_expires_at <= coalesce(%(now)s::timestamptz, now())",
                "WHERE r.state = 'leased'",
            ),
        ),
    ),
    Mutant(
        "the outbox is emptied before Kafka has its events",
        "outages",
        ("versions_are_contiguous", "nothing_is_lost"),
        (
            Replacement(
                "streams/outbox_relay.py",
                "        while await asyncio.to_thread(publisher.wait, _ACK_LOOK_S):\n",
                "        await delete_from_outbox(conn, [row.id for row in rows])\n"
                "        while await asyncio.to_thread(publisher.wait, _ACK_LOOK_S):\n",
            ),
        ),
    ),
    Mutant(
        "a command that comes again is applied again",
        "outages",
        ("nothing_is_lost",),
        (
            Replacement(
                _APPLIER,
                "        delivered = await _without_repeated(tx, delivered)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "the consumed offset is not stored",
        "outages",
        ("partitions_are_owned",),
        (Replacement(_APPLIER, "            await _move_on(tx, batch)\n        self._caps", "        self._caps"),),
    ),
    Mutant(
        "lost hints are not looked for",
        "outages",
        ("nothing_is_lost",),
        (
            Replacement(
                "api/ready_poll.py",
                "            found = await self._find({queue: look.lanes for queue, look in queues.items()}, limit)\n",
                "            found: list[DueRun] | None = []\n",
            ),
            Replacement(_OWNER, "self._begin_unless_under_way(self._sweep)", "pass"),
        ),
    ),
    Mutant(
        "the fence is removed",
        "frozen owner",
        ("partitions_are_owned",),
        (_NO_FENCE, _NO_FENCES),
    ),
    # The compare-and-set stands behind the fence: only where that is gone, too, does anybody decide from an old cursor.
    Mutant(
        "no fence, and the cursor moves without compare-and-set",
        "frozen owner",
        ("occurrences_are_decided_once",),
        (_NO_FENCE, _NO_FENCES, _NO_COMPARE_AND_SET),
    ),
    Mutant(
        "a takeover keeps the epoch",
        "frozen owner",
        ("epochs_only_grow",),
        (
            Replacement(
                _FENCE,
                'TAKE_OVER = "SELECT epoch, previous_owner, consumed_offset, decided_through FROM take_over(%s, %s)"',
                'TAKE_OVER = """WITH a AS (SELECT %s::int AS p, %s::text AS o) UPDATE partitions SET owner = a.o FROM a'
                ' WHERE partition = a.p RETURNING epoch, NULL::text, consumed_offset, decided_through"""',
            ),
        ),
    ),
    Mutant(
        "an owner that returns with its state leaves out what others did meanwhile",
        "returning owner",
        ("decisions_are_as_far_as_is_said",),
        (
            Replacement(
                "streams/opening.py",
                "self._memory.fold(events, Position(position.epoch, next_offset))",
                "self._memory.fold([], Position(position.epoch, next_offset))",
            ),
        ),
    ),
)
