"""Fencepost's client: send jobs by Kafka, call the HTTP API, execute runs.

CommandProducer   jobs by Kafka
FencepostClient   the HTTP API; SyncClient the same for blocking code
Worker            executes runs; SyncWorker and run_worker the same for blocking code
"""

from fencepost.client import FencepostClient
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
    Throttled,
    TopicMissing,
    TryAgain,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from fencepost.job_spec import JobSpec, Schedule, after, at, cron, every
from fencepost.leases import StopReason
from fencepost.producer import CommandProducer
from fencepost.run_context import RunContext
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
    "PermanentFailure",
    "Refused",
    "RetryLater",
    "RunContext",
    "Schedule",
    "ServerFault",
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
    "run_worker",
]
