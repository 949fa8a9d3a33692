"""What a verdict wants to know of an installation at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import httpx
import psycopg

from tests.chaos.cluster import wait_for
from tests.chaos.installation import Installation
from tests.chaos.job_rules import Holding
from tests.chaos.observations import consumed_offsets, topic_ends

HISTORY_WITHIN_S = 60.0

T = TypeVar("T")
Read = Callable[[str, str, Mapping[int, int], set[str]], list[T]]


def read_holdings(installation: Installation) -> Mapping[int, Holding]:
    """Of every partition."""
    servers = installation.servers
    said = {owner: set(installation.held_by(owner)) for owner in installation.owners}
    consumed = consumed_offsets(servers.postgres)
    ends = topic_ends(servers.kafka, installation.topics.commands)
    return {
        partition: Holding(
            owner, tuple(name for name, held in said.items() if partition in held), consumed[partition], ends[partition]
        )
        for partition, owner in installation.holders().items()
    }


def read_by_partition(installation: Installation, topic: str, read: Read[T], jobs: set[str]) -> list[T]:
    """A whole topic, one partition after the other: all at once would take longer than a reader's patience."""
    partitions = range(installation.partitions)
    found: list[T] = []
    for partition in partitions:
        others = {other: 1 << 62 for other in partitions if other != partition}
        found += read(installation.servers.kafka, topic, others, jobs)
    return found


def count_takeovers(installation: Installation) -> int:
    with psycopg.connect(installation.servers.postgres, autocommit=True) as conn:
        return int(conn.execute("SELECT count(*) FROM takeovers").fetchall()[0][0])


def completed_in_history(installation: Installation, wanted: int) -> int:
    """How many completed runs it tells of, once it has caught up or has had the time; -1 where it does not answer."""
    found = -1

    def has_caught_up() -> bool:
        nonlocal found
        found = _ask_history(installation, "SELECT count(*) FROM runs WHERE state = 'completed'")
        return found == wanted

    with suppress(AssertionError):
        wait_for(has_caught_up, HISTORY_WITHIN_S, "the history has caught up")
    return found


def _ask_history(installation: Installation, sql: str) -> int:
    headers = {"Authorization": f"Bearer {installation.token}"}
    try:
        answer: Any = httpx.post(
            f"{installation.url()}/v1/query", json={"sql": sql}, headers=headers, timeout=30, trust_env=False
        )
    except httpx.HTTPError:
        return -1
    return int(answer.json()["rows"][0][0]) if answer.is_success else -1
