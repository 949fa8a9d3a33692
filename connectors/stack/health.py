"""Probes: one real question to each kind of part, never raising."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

DETAIL_CHARS = 1000


@dataclass(frozen=True)
class Health:
    ok: bool
    detail: str


def kafka_health(bootstrap: str, timeout_s: float = 2.0) -> Health:
    """Ask for the metadata of the cluster."""
    # log_level 0: librdkafka would print each refused connection to stderr while the broker starts.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})
    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        return Health(False, str(error.args[0]))
    return Health(bool(metadata.brokers), f"{bootstrap}, {len(metadata.topics)} topics")


def postgres_health(dsn: str, timeout_s: float = 2.0) -> Health:
    """Connect and select. The detail tells a standby from a primary."""
    try:
        with psycopg.connect(dsn, connect_timeout=max(2, round(timeout_s))) as connection:
            follows = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            version = connection.info.server_version
    except psycopg.Error as error:
        return Health(False, _one_line(str(error)))
    return Health(True, f"{dsn}, version {version // 10000}.{version % 10000}{', standby' if follows else ''}")


def http_health(url: str, timeout_s: float = 2.0) -> Health:
    """GET the health URL: 2xx is healthy. The detail is what it answers, on one line."""
    try:
        # trust_env off: a proxy of the environment cannot reach a loopback port.
        answer = httpx.get(url, timeout=timeout_s, trust_env=False)
    except httpx.HTTPError as error:
        return Health(False, f"{url}: {error}")
    return Health(answer.is_success, _one_line(answer.text) or f"HTTP {answer.status_code}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:DETAIL_CHARS]
