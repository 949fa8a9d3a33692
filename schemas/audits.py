"""Audit events: who changed what. They are on `fencepost.run-events` beside the run events, in records of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from schemas.codec import Codec
from schemas.errors import Undecodable

# Of the records that have them. Run events have none, so whoever reads those alone knows by it what to leave out,
# whichever schema ids an installation has.
AUDIT_KEY = b"audit"


class AuditEvent(NamedTuple):
    """at_us: microseconds since 1970. What the others are, is told in schemas/avro/io.fencepost.AuditEvents.avsc."""

    event_id: str
    at_us: int
    tenant: str
    actor: str
    action: str
    subject: str
    detail: str | None


_FIELDS = ("eventId", "at", "tenant", "actor", "action", "subject", "detail")


def encode_audits(codec: Codec, events: Sequence[AuditEvent]) -> bytes:
    """The value of a record that has these."""
    return codec.encode("AuditEvents", {"events": [dict(zip(_FIELDS, event, strict=True)) for event in events]})


def decode_audits(codec: Codec, wire: bytes | None) -> list[AuditEvent]:
    """The events of a record whose key is AUDIT_KEY. Raises Undecodable."""
    name, record = codec.decode(wire, micros=True)
    if name != "AuditEvents":
        raise Undecodable(f"a {name} is no AuditEvents")
    return [AuditEvent(*(event[field] for field in _FIELDS)) for event in record["events"]]
