"""What a worker counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkerStats:
    """Since the worker's start; in runs.

    leased: handed to us. completed, failed, released, snoozed: outcomes that the server accepted. cancelled: attempts
    that ended with their run, as it was to be cancelled or its job was deleted. conflicts: outcomes answered 409.
    abandoned: never reported, as the lease was lost or could have ended. refused: outcomes the server would not have at
    all.
    """

    leased: int = 0
    completed: int = 0
    failed: int = 0
    released: int = 0
    snoozed: int = 0
    conflicts: int = 0
    abandoned: int = 0
    refused: int = 0
    cancelled: int = 0
