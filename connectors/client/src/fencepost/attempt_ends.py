"""From what a handler did to what is reported of it."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from fencepost.errors import PermanentFailure, RetryLater, Snooze
from fencepost.leases import Lease
from fencepost.models import Completion, Failure, Release, Snoozing
from fencepost.schedules.json_depth import MAX_DEPTH, is_too_deep
from fencepost.sealing import PayloadCodec, seal

log = logging.getLogger("fencepost.worker")

RESULT_MAX_BYTES = 64 * 1024
ERROR_MAX_CHARS = 4000


def completion(lease: Lease, result: Any, codec: PayloadCodec | None = None) -> tuple[Completion, int]:
    """Raises PermanentFailure for a result that the server would refuse: no attempt would mend it."""
    run = lease.run
    if result is None:
        return Completion(run.run_id, run.lease_token), 0
    try:
        text = msgspec.json.encode(result)
        if codec is not None:
            text = msgspec.json.encode(seal(text, codec))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PermanentFailure(f"the handler's result is no JSON: {error}") from error
    if len(text) > RESULT_MAX_BYTES:
        raise PermanentFailure(f"the handler's result is {len(text)} bytes, more than {RESULT_MAX_BYTES}")
    if is_too_deep(text.decode()):
        raise PermanentFailure(f"the handler's result is nested deeper than {MAX_DEPTH} levels")
    return Completion(run.run_id, run.lease_token, msgspec.Raw(text)), len(text)


def outcome_of(lease: Lease, error: BaseException) -> Failure | Snoozing:
    """What a handler's exception means."""
    if isinstance(error, Snooze):
        return Snoozing(lease.run.run_id, lease.run.lease_token, error.seconds)
    if isinstance(error, PermanentFailure):
        return failure(lease, str(error) or "permanent failure", permanent=True)
    if isinstance(error, RetryLater):
        return failure(lease, str(error), retry_after_s=error.seconds)
    if lease.stop_reason is None:
        log.error("run %s attempt %d failed", lease.run.run_id, lease.run.attempt, exc_info=error)
    return failure(lease, f"{type(error).__name__}: {error}")


def failure(lease: Lease, reason: str, *, permanent: bool = False, retry_after_s: float | None = None) -> Failure:
    # A lone surrogate (of an undecodable file name, for instance) is no text for JSON.
    text = shortened(reason).encode(errors="replace").decode()
    return Failure(lease.run.run_id, lease.run.lease_token, text, permanent, retry_after_s)


def shortened(reason: str) -> str:
    """What the server takes of a reason; where it ends early it says so."""
    if len(reason) <= ERROR_MAX_CHARS:
        return reason
    mark = f"… ({len(reason):,} characters)"
    return reason[: ERROR_MAX_CHARS - len(mark)] + mark


def release(lease: Lease) -> Release:
    return Release(lease.run.run_id, lease.run.lease_token)
