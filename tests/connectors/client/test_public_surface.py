"""What the distribution promises: its names, its errors, and that it drags nothing of the server along."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fencepost
from fencepost import errors

PUBLIC = {
    *{"CommandProducer", "FencepostClient", "SyncClient", "Worker", "SyncWorker", "run_worker", "RunContext"},
    *{"JobSpec", "Schedule", "cron", "every", "at", "after", "StopReason", "WorkerStats"},
    *{"PayloadCodec", "opened"},
    *{"FencepostError", "TryAgain", "Unreachable", "KafkaUnreachable", "Unavailable", "Throttled", "Refused"},
    *{"Unauthorized", "NotFound", "Conflict", "LeaseLost", "Invalid", "InvalidInput", "TopicMissing", "ServerFault"},
    *{"PermanentFailure", "RetryLater", "Snooze"},
}


def test_public_names_are_pinned() -> None:
    assert set(fencepost.__all__) == PUBLIC
    assert fencepost.__all__ == sorted(fencepost.__all__)


def test_every_public_name_is_there_although_some_are_loaded_later() -> None:
    assert set(dir(fencepost)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(fencepost, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        _ = fencepost.Wroker  # type: ignore[attr-defined]


def test_every_error_has_a_remedy() -> None:
    remedies = (errors.TryAgain, errors.Refused, errors.InvalidInput, errors.TopicMissing, errors.ServerFault)
    raised = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FencepostError)
    ]
    assert {kind.__name__ for kind in raised} <= PUBLIC
    assert len(raised) == 15
    assert all(issubclass(kind, remedies) for kind in raised if kind is not errors.FencepostError)
    assert not issubclass(errors.PermanentFailure, errors.FencepostError)
    assert not issubclass(errors.RetryLater, errors.FencepostError)
    assert not issubclass(errors.Snooze, errors.FencepostError)


def test_client_imports_nothing_of_the_server() -> None:
    server = {"schemas", "ledger", "streams", "api", "fencepostd", "connectors", "starlette", "psycopg", "faust"}
    script = (
        "import sys, fencepost.cli; from fencepost import *; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "fencepost" in loaded
    assert server.isdisjoint(loaded)
