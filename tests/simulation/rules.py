"""What the protocol consists of, rule by rule, and what a mutant that lacks one does instead."""

from __future__ import annotations

MUTANTS: dict[str, str] = {
    "fence": "an owner's writes are not compared with the partition's epoch",
    "fence lock": "writers do not hold the epoch still while they write",
    "fence read": "the epoch is read by the statement that waits for the lock: the snapshot is from before",
    "takeover lock": "a takeover does not wait for the writers of the old epoch",
    "epoch grows": "a takeover leaves the epoch as it is",
    "offset": "the consumed offset is not stored with the effects",
    "command ids": "a command that comes in a second record is applied again",
    "due": "a lease is given before the run is due",
    "token grows": "a lease has the token of the one before",
    "token check": "whoever holds a run's id may end its lease",
    "expiry check": "what is told of a lease is accepted after its end",
    "lease extended": "an owner ends leases without a look at whether they were extended",
    "attempts": "attempts are not counted against the job's limit",
    "request ids": "a repeated lease call leases anew",
    "slot": "a gated run is leased while its job's slot is taken",
    "freed slot": "the end of a lease does not free the slot",
    "job states": "a run comes back to its job beside the job's pause or deletion",
    "cursor": "a job's cursor is moved from wherever it is by then: its compare-and-set is left out",
    "every missed event": "an owner with a kept state misses events of those who had the partition meanwhile",
    "wait for the relay": "a kept state counts as whole while events of the epochs before are still in the outbox",
    "repeated hints": "a hint that was lost is not sent again",
    "publish first": "events are deleted from the outbox before the broker has them",
    "move lock": "a move copies while writers are still at it",
    "move epoch": "a move leaves the source open under its epoch",
    "prepared place": "a second mover of a move prepares the target anew, though the first has copied to it",
    "copy fence": "a mover that was frozen writes its copy over what has come since",
}
