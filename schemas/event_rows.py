"""The events of a record of `fencepost.run-events`, as rows of the fields that a consumer needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from schemas.codec import Codec, reader_schema
from schemas.errors import Undecodable
from schemas.row_decoder import Row, RowDecoder, long_at


class EventRows:
    """Reads records the short way, or by resolving the schema that another build wrote with."""

    def __init__(self, codec: Codec, fields: Sequence[str]) -> None:
        """fields: of io.fencepost.RunEvent, at least two; what a row has, in this order, with times in microseconds."""
        self._codec = codec
        self._decoder = RowDecoder(reader_schema("RunEvent"), fields)
        self._fields_of = itemgetter(*fields)

    def of(self, wire: bytes) -> Iterable[Row]:
        """The events of one record. Raises Undecodable."""
        body = self._codec.body_of("RunEvents", wire)
        if body is not None:
            return self._decoded(wire, body)
        name, record = self._codec.decode(wire, micros=True)
        if name != "RunEvents":
            raise Undecodable(f"a {name} is no RunEvents")
        return map(self._fields_of, record["events"])

    def _decoded(self, wire: bytes, body: int) -> Sequence[Row]:
        """Those of a record that begins at that byte: after its partition, they are all there is."""
        try:
            _, events = long_at(wire, body)
        except IndexError as error:
            raise Undecodable("the body is no RunEvents: it has no partition") from error
        rows, end = self._decoder.array(wire, events)
        if end != len(wire):
            raise Undecodable(f"{len(wire) - end} bytes are left over after the RunEvents")
        return rows
