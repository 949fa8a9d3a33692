"""The registry client, against the two documented calls of a Confluent-compatible registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from fencepostd.schema_registry import SchemaRegistry
from schemas.codec import BUILT_IN_IDS, Codec
from schemas.errors import KafkaUnavailable, Undecodable

HINTS = {
    "tenant": "acme",
    "queue": "mail",
    "lane": "high",
    "partition": 3,
    "epoch": 7,
    "runIds": b"x" * 16,
    "dueAt": None,
}
FIRST_ID = 501


class RegistryHandler(BaseHTTPRequestHandler):
    """POST /subjects/{subject}/versions and GET /schemas/ids/{id}, in memory."""

    schemas: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["schema"] not in self.schemas:
            self.schemas.append(body["schema"])
        self._answer(200, {"id": FIRST_ID + self.schemas.index(body["schema"])})

    def do_GET(self) -> None:
        number = int(self.path.partition("?")[0].rpartition("/")[2]) - FIRST_ID
        if 0 <= number < len(self.schemas):
            self._answer(200, {"schema": self.schemas[number]})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry_url() -> Iterator[str]:
    RegistryHandler.schemas.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), RegistryHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_records_carry_the_ids_of_the_registry(registry_url: str) -> None:
    wire = Codec(SchemaRegistry(registry_url)).encode("ReadyHints", HINTS)
    assert int.from_bytes(wire[1:5], "big") == FIRST_ID


def test_another_process_reads_them_through_the_registry(registry_url: str) -> None:
    wire = Codec(SchemaRegistry(registry_url)).encode("ReadyHints", HINTS)
    assert Codec(SchemaRegistry(registry_url)).decode(wire) == ("ReadyHints", HINTS)


@pytest.mark.parametrize("name", BUILT_IN_IDS)
def test_every_record_registers_as_a_schema_that_stands_alone(registry_url: str, name: str) -> None:
    registry = SchemaRegistry(registry_url)
    assert registry.writer_schema(registry.id_of(name))[0] == name


def test_an_id_that_nobody_registered_is_undecodable(registry_url: str) -> None:
    wire = b"\x00" + (9_999).to_bytes(4, "big") + b"body"
    with pytest.raises(Undecodable, match="unknown schema id 9999"):
        Codec(SchemaRegistry(registry_url)).decode(wire)


def test_a_registry_that_is_away_is_said_to_be() -> None:
    with pytest.raises(KafkaUnavailable, match="registry"):
        SchemaRegistry("http://127.0.0.1:9").id_of("ReadyHints")
