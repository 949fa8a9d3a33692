"""What each SQL statement of `ledger/` does, in plain Python over the model of Postgres: imported for `MODELS`."""

from tests.simulation.statements import admissions, commands, fence, jobs, leases, lookups, moves, outcomes

__all__ = ["admissions", "commands", "fence", "jobs", "leases", "lookups", "moves", "outcomes"]
