"""A plan's hash: 64 hex digits, of which the first 16 stand for the file, the next 16 for the server's jobs.

So whoever has only the hash can still be told which of the two has moved since. The hash holds for a day: who applies a
plan should have seen what it does to the time that comes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from fencepost.declarations.base import BaseJob
from fencepost.declarations.job_file import DeclaredSet

HOLDS_H = 24
_HASH = re.compile(r"[0-9a-f]{64}")
_PART = 16


def plan_hash(tenant: str, declared: DeclaredSet, base: Sequence[BaseJob], *, prune: bool, start: datetime) -> str:
    """Of the set, the file's content as parsed, the server's jobs, and the hour in which the horizon starts.

    So a plan whose payloads are sealed is not the one that would send the same payloads readable.
    """
    content = _digest([tenant, declared.name, prune, declared.jobs, *(["sealed"] if declared.sealed else [])])
    found = _digest([[job.job_id, job.version, job.state] for job in sorted(base)])
    hour = start.replace(minute=0, second=0, microsecond=0)
    return content[:_PART] + found[:_PART] + _digest([content, found, hour])[: 2 * _PART]


def moved_since(
    told: str, tenant: str, declared: DeclaredSet, base: Sequence[BaseJob], *, prune: bool, start: datetime
) -> list[str]:
    """What has moved since the plan of hash `told` was made, if it is applied at start; nothing: it holds."""
    if not _HASH.fullmatch(told):
        return [f"{told[:64]!r} is no hash of a plan: that has 64 hexadecimal digits"]
    hours = (start - timedelta(hours=age) for age in range(HOLDS_H + 1))
    candidates = [plan_hash(tenant, declared, base, prune=prune, start=hour) for hour in hours]
    if told in candidates:
        return []
    now, moved = candidates[0], []
    if told[:_PART] != now[:_PART]:
        moved.append("the file has changed, or is planned for another set, tenant, --prune or --payload-codec")
    if told[_PART : 2 * _PART] != now[_PART : 2 * _PART]:
        moved.append("the server's jobs of the set have changed")
    return moved or [f"the plan is older than {HOLDS_H} hours, or was made for another time"]


def _digest(content: Any) -> str:
    return sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
