"""What every role needs to know of the installation, from flags or FENCEPOST_* variables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fencepostd.schema_registry import SchemaRegistry
from schemas.codec import Codec
from streams.kafka_security import PLAINTEXT, KafkaSecurity
from streams.topics import Topics

DEFAULT_PARTITIONS = 16  # enough for one machine; a production installation has 256


@dataclass(frozen=True)
class Settings:
    """dsn: Postgres. bootstrap: Kafka. state: this process's folder for RocksDB or DuckDB."""

    dsn: str
    bootstrap: str
    topics: Topics
    state: Path
    host: str = "127.0.0.1"
    port: int = 0
    schema_registry: str | None = None
    security: KafkaSecurity = PLAINTEXT

    def codec(self) -> Codec:
        """Encodes with the registry's ids where one is configured, else with the built-in ones."""
        return Codec(SchemaRegistry(self.schema_registry) if self.schema_registry else None)
