"""What can be seen of a cluster from outside: the only things that the checker reads.

Instants are aware datetimes of one machine's clock, which is the ledger's too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from fencepost.verification.events import Event, RunEvent

EntryKind = Literal["leased", "started", "finished", "stopped", "answered", "failed"]


class WorkerEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a worker's log.

    leased: the run came with this token; attempt, due_at and expires_at are the answer's. started, finished: the
    handler. stopped: the handler was cancelled. answered: status is what a completion got. failed: a call, of no run,
    of which the SDK makes no more than a wait; detail tells what came of it.
    """

    kind: EntryKind
    at: datetime
    worker: str
    run_id: str
    token: int
    attempt: int = 0
    due_at: datetime | None = None
    expires_at: datetime | None = None
    status: int = 0
    detail: str = ""


def read_worker_log(path: Path, offset: int = 0) -> tuple[list[WorkerEntry], int]:
    """Every whole line from a byte offset on, and the offset after them: a killed worker may have left half a line."""
    if not path.exists():
        return [], offset
    with path.open("rb") as log:
        log.seek(offset)
        whole, newline, _ = log.read().rpartition(b"\n")
    return [_decode_entry(line) for line in whole.splitlines()], offset + len(whole) + len(newline)


_decode_entry = msgspec.json.Decoder(WorkerEntry).decode


# A run's event as `run-events` holds it, in topic order; redeliveries included.
TopicEvent = RunEvent


@dataclass(frozen=True)
class TopicCommand:
    """A command as the commands topic holds it."""

    command_id: str
    job_id: str
    kind: str


@dataclass(frozen=True)
class EpochSample:
    """The partitions as the ledger had them at a moment: partition -> (epoch, owner).

    overdue: how many runs waited that were due 5 s before.
    """

    at: datetime
    partitions: Mapping[int, tuple[int, str | None]]
    overdue: int = 0


@dataclass(frozen=True)
class LedgerReadout:
    """What is left in the ledger at the end, and what it says became of each command."""

    live_runs: frozenset[str] = frozenset()
    dead_runs: frozenset[str] = frozenset()
    outbox_rows: int = 0
    outcomes: Mapping[str, str] = field(default_factory=dict)


@dataclass
class History:
    """One trial. one_offs: job id -> the instant that was asked for, of every create that Kafka acknowledged.

    faults: what was done to the processes meanwhile; without any, nothing may run twice. told: what the topic tells of
    runs and of jobs, in its order, for the rules of occurrences and overlap; where it is left out `events` is judged.
    """

    one_offs: Mapping[str, datetime]
    entries: list[WorkerEntry]
    events: list[TopicEvent]
    commands: list[TopicCommand]
    epochs: list[EpochSample]
    ledger: LedgerReadout
    faults: list[str]
    told: list[Event] = field(default_factory=list)

    def entries_of(self, kind: EntryKind) -> Iterable[WorkerEntry]:
        """The workers' entries of one kind, each worker's in its order."""
        return (entry for entry in self.entries if entry.kind == kind)
