"""Every error of ours, grouped by what the one who catches it should do."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class FencepostError(Exception):
    """The root. Errors of psycopg, Kafka and Avro are mapped to one of these at the boundary, once."""


class TryAgain(FencepostError):
    """Retry it: a dependency was away for a moment and nothing was written."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LedgerUnavailable(TryAgain):
    """Postgres did not answer, or ended our session."""


class KafkaUnavailable(TryAgain):
    """The broker did not take or give a record in time."""


class HistoryBusy(TryAgain):
    """The history cannot answer at the moment: it is short of memory, or away."""


class EpochLost(FencepostError):
    """Drop your memory of the partition: somebody else took it over since you last looked."""

    def __init__(self, partition: int | None = None) -> None:
        super().__init__(f"partition {partition} has another owner or epoch now")
        self.partition = partition


class NotOnThisShard(EpochLost):
    """Read the map of shards again, and ask the shard that has the partitions now; they may be on their way to it.

    partitions: those of the asked ones that are not on the shard.
    """

    def __init__(self, partitions: Collection[int]) -> None:
        super().__init__(next(iter(partitions), None))
        self.partitions = frozenset(partitions)

    def __str__(self) -> str:
        return f"partition {', '.join(map(str, sorted(self.partitions)))} is being moved to another shard"


class LeaseLost(FencepostError):
    """Stop the worker's handler: the run is no longer yours."""


class CommandRejected(FencepostError):
    """Reject the command: it can never succeed, whoever retries it.

    field: the offending field by its JSON name, dotted for nested ones (`schedule.cron`), or None.
    """

    code = "invalid"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class Undecodable(CommandRejected):
    """The bytes are no record of ours: wrong magic byte, unknown schema id, or a body that does not fit it."""

    code = "undecodable"


class InvalidSchedule(CommandRejected):
    """A schedule that cannot be right; the message names the remedy."""

    code = "invalid_schedule"

    def __init__(self, field: str, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message, field=field)
        self.remedy = remedy


class UnknownZone(InvalidSchedule):
    """Not a name on the allow-list of IANA zones that every node shares."""


class JobUnknown(CommandRejected):
    """The command names a job that does not exist, was deleted, or belongs to another tenant."""

    code = "job_unknown"


class ForeignTenant(CommandRejected):
    """The command came by the topic of another tenant than it names, or in a batch record of another."""

    code = "tenant_forbidden"


class RunUnknown(CommandRejected):
    """The command names a run that is none of the job's, or not in a state in which it could have an effect."""

    code = "run_unknown"


class JobConflict(CommandRejected):
    """A create whose job id is taken by a job with another definition."""

    code = "job_conflict"


class TooManyPending(CommandRejected):
    """More runs for a tenant that has as many as it may; the same may succeed later, as another command."""

    code = "too_many_pending"


class QueryRejected(CommandRejected):
    """A query of the history that is not one allowed SELECT, or that took too long."""

    code = "query_rejected"

    def __init__(self, reason: str, *, field: str = "sql") -> None:
        super().__init__(reason, field=field)


class InvariantBroken(FencepostError):
    """Crash: the state contradicts itself, and going on would spread the damage."""


class MoveRefused(FencepostError):
    """Tell the operator: the partition is not moved, and nothing is lost. The message says what to do."""


class LedgerMismatch(FencepostError):
    """Refuse to start: the ledger's settings or schema are not those this process was built or started for."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
