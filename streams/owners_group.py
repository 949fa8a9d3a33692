"""Who is in the group of owners, as Kafka knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

LOOK_S = 0.2
TIMEOUT_S = 2.0


async def until_empty(bootstrap: str, group: str, kafka_config: Mapping[str, Any] | None = None) -> None:
    """Until nobody is in the group who could take over a partition: nobody can while Kafka does not answer, either."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **(kafka_config or {})})
    while True:
        if not await asyncio.to_thread(_has_members, admin, group):
            return
        await asyncio.sleep(LOOK_S)


def _has_members(admin: AdminClient, group: str) -> bool:
    try:
        [description] = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S).values()
        return bool(description.result(TIMEOUT_S).members)
    except (KafkaException, TimeoutError):
        return False
