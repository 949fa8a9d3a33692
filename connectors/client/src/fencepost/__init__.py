"""Fencepost's client: send jobs by Kafka, call the HTTP API, execute runs.

CommandProducer   jobs by Kafka
FencepostClient   the HTTP API; SyncClient the same for blocking code
Worker            executes runs; SyncWorker and run_worker the same for blocking code
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencepost.errors import (
    Conflict,
    FencepostError,
    Invalid,
    InvalidInput,
    KafkaUnreachable,
    LeaseLost,
    NotFound,
    PermanentFailure,
    Refused,
    RetryLater,
    ServerFault,
    Snooze,
    Throttled,
    TopicMissing,
    TryAgain,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from fencepost.job_spec import JobSpec, Schedule, after, at, cron, every

if TYPE_CHECKING:
    from fencepost.client import FencepostClient
    from fencepost.leases import StopReason
    from fencepost.producer import CommandProducer
    from fencepost.run_context import RunContext
    from fencepost.sealing import PayloadCodec, opened
    from fencepost.sync_client import SyncClient
    from fencepost.sync_worker import SyncWorker, run_worker
    from fencepost.worker import Worker
    from fencepost.worker_stats import WorkerStats

__version__ = "0.1.0"

__all__ = [
    "CommandProducer",
    "Conflict",
    "FencepostClient",
    "FencepostError",
    "Invalid",
    "InvalidInput",
    "JobSpec",
    "KafkaUnreachable",
    "LeaseLost",
    "NotFound",
    "PayloadCodec",
    "PermanentFailure",
    "Refused",
    "RetryLater",
    "RunContext",
    "Schedule",
    "ServerFault",
    "Snooze",
    "StopReason",
    "SyncClient",
    "SyncWorker",
    "Throttled",
    "TopicMissing",
    "TryAgain",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Worker",
    "WorkerStats",
    "after",
    "at",
    "cron",
    "every",
    "opened",
    "run_worker",
]

# Loaded when first used, so that nobody waits for asyncio, httpx or librdkafka without needing them.
_LOADED_LATER = {
    "CommandProducer": "producer",
    "FencepostClient": "client",
    "PayloadCodec": "sealing",
    "RunContext": "run_context",
    "StopReason": "leases",
    "SyncClient": "sync_client",
    "SyncWorker": "sync_worker",
    "Worker": "worker",
    "WorkerStats": "worker_stats",
    "opened": "sealing",
    "run_worker": "sync_worker",
}


if not TYPE_CHECKING:  # to a type checker it would say that every name exists

    def __getattr__(name: str) -> Any:
        if name not in _LOADED_LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_LOADED_LATER[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
