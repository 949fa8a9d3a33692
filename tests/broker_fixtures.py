"""Real servers for the tests, started when a test first asks and stopped when the session ends.

Every pytest process has its own, on its own ports, so two runs side by side do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.stack import KafkaBroker, PostgresServer, default_cache_dir


@pytest.fixture(scope="session")
def stack_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of the servers that the session shares."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def kafka_broker(stack_dir: Path) -> Iterator[KafkaBroker]:
    """A running broker for the whole session. Tests name their topics so that they do not meet."""
    broker = KafkaBroker(stack_dir, default_cache_dir(), say=print)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def postgres_server(stack_dir: Path) -> Iterator[str]:
    """The DSN of a Postgres that runs for the whole session. Tests make databases of their own in it."""
    server = PostgresServer(stack_dir, default_cache_dir(), say=print)
    try:
        server.start()
        yield server.dsn
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def _skip_what_needs_apache_kafka(request: pytest.FixtureRequest) -> None:
    """Tests marked `apache_kafka(reason=...)` are skipped, with that reason, on the fallback broker."""
    marker = request.node.get_closest_marker("apache_kafka")
    if marker is None:
        return
    broker: KafkaBroker = request.getfixturevalue("kafka_broker")
    if broker.flavour != "apache":
        pytest.skip(f"needs Apache Kafka, the broker is {broker.flavour}: {marker.kwargs['reason']}")
