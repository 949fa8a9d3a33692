"""Schema ids from a Confluent-compatible registry, in place of the built-in ones."""

from __future__ import annotations

import json
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from schemas.codec import NAMESPACE, ParsedSchema, reader_schema
from schemas.errors import KafkaUnavailable

_NOT_FOUND = 404


class SchemaRegistry:
    """A `schemas.codec.Registry` over HTTP. Subjects are named after the records, since topics carry several kinds.

    Each answer is asked for once a process: ids never change their meaning.
    """

    def __init__(self, url: str) -> None:
        """url: the registry's, with user:password@ if it asks for them."""
        self._client = SchemaRegistryClient({"url": url, "timeout": 10, "max.retries": 1})

    def id_of(self, name: str) -> int:
        """The id of this build's schema, registered if it is new. Raises KafkaUnavailable, also when it is refused."""
        schema = Schema(json.dumps(_plain(reader_schema(name))), "AVRO")
        try:
            return int(self._client.register_schema(f"{NAMESPACE}.{name}", schema))
        except Exception as error:  # the library lets its HTTP client's errors through, whichever that is
            raise KafkaUnavailable(f"the schema registry did not take {name}: {error}") from error

    def writer_schema(self, schema_id: int) -> tuple[str, ParsedSchema]:
        """What an id was written with. Raises KeyError when nobody registered it, KafkaUnavailable."""
        try:
            found = self._client.get_schema(schema_id)
        except Exception as error:
            if isinstance(error, SchemaRegistryError) and error.http_status_code == _NOT_FOUND:
                raise KeyError(schema_id) from error
            raise KafkaUnavailable(f"the schema registry did not tell schema {schema_id}: {error}") from error
        schema = json.loads(found.schema_str)
        name = str(schema["name"]).rpartition(".")[2]
        return name, fastavro.parse_schema(schema)


def _plain(schema: Any) -> Any:
    """A parsed schema without fastavro's own marks."""
    return {key: value for key, value in schema.items() if not key.startswith("__")}
