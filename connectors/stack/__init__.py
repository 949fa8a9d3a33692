"""Fencepost on one machine: real Kafka, real Postgres and the server's roles as plain child processes.

Knows nothing of the server: the composition root hands it the roles to run.
"""

from connectors.stack.errors import ApacheKafkaUnavailable, PartFailed, StackBusy, StackError
from connectors.stack.kafka import KafkaBroker
from connectors.stack.postgres import PostgresServer
from connectors.stack.postgres_pair import PostgresPair
from connectors.stack.roles import RoleSpec
from connectors.stack.stack import LocalStack, default_cache_dir
from connectors.stack.status import PartStatus

__all__ = [
    "ApacheKafkaUnavailable",
    "KafkaBroker",
    "LocalStack",
    "PartFailed",
    "PartStatus",
    "PostgresPair",
    "PostgresServer",
    "RoleSpec",
    "StackBusy",
    "StackError",
    "default_cache_dir",
]
