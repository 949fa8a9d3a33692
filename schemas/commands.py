"""Job commands: what a producer may ask of a job, and the checks that need no look at the ledger.

The Avro records and the HTTP bodies have the same fields under the same (camelCase) names, so both become the same
structs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, Struct, field

from schemas.codec import NAMESPACE, Codec, Record
from schemas.errors import CommandRejected, ForeignTenant, Undecodable
from schemas.json_depth import MAX_DEPTH, is_too_deep
from schemas.schedule import Schedule, parse_schedule

T = TypeVar("T")

PAYLOAD_MAX_BYTES = 64 * 1024

# $ would allow a newline
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+\Z", examples=["mail"])]
Instant = Annotated[datetime, Meta(tz=True)]  # a naive datetime is an error
DeclaredAs = Annotated[str, Meta(max_length=201, pattern=r"^[A-Za-z0-9_.:-]{1,100}/[A-Za-z0-9_.:-]{1,100}\Z")]
# No control characters: Postgres keeps no NUL, and people read it.
ConcurrencyKey = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!-~]+\Z", examples=["customer-42"])]
Lane = Literal["high", "normal", "low"]
LANES: tuple[Lane, ...] = ("high", "normal", "low")  # the ledger stores the index
CatchUp = Literal["latest", "all", "none"]
Overlap = Literal["allow", "skip", "replace"]
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "replace")  # the ledger stores the index
RetryBackoff = Literal["exponential", "linear", "fixed"]
RETRY_BACKOFFS: tuple[RetryBackoff, ...] = ("exponential", "linear", "fixed")  # the ledger stores the index
BACKFILL_MAX_RUNS = 1_000
ISSUER_HEADER = "fencepost-issuer"
PositiveSeconds = Annotated[float, Meta(gt=0, le=366 * 86400)]
RetrySeconds = Annotated[float, Meta(ge=0.001, le=366 * 86400)]


class JobSpec(Struct, rename="camel", kw_only=True, frozen=True):
    """What a job is: the definition that create and update carry.

    schedule: the JSON form, see schemas/schedule.py. payload: a JSON document as text, at most 64 KiB. The delay before
    retry n (the n-th attempt failed) is uniform in (0, least(retry_max, d)] with d = base · 2^n for exponential,
    base · n for linear, base for fixed. catch_up_limit: how many missed occurrences `all` makes up for, the newest.
    declared_as: "set/name" of a job that a file declares; the set is what a plan compares the file with.
    concurrency_key: of the runs with the same one the queue may limit how many are leased at once.
    """

    queue: Name
    schedule: dict[str, Any]
    lane: Lane = "normal"
    name: Annotated[str, Meta(max_length=200)] | None = None
    payload: str | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    timeout_seconds: PositiveSeconds | None = None
    catch_up: CatchUp = "latest"
    overlap: Overlap = "allow"
    start_deadline_seconds: PositiveSeconds | None = None
    retry_backoff: RetryBackoff = "exponential"
    retry_base_seconds: RetrySeconds = 1.0
    retry_max_seconds: RetrySeconds = 600.0
    catch_up_limit: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    declared_as: DeclaredAs | None = None
    concurrency_key: ConcurrencyKey | None = None


class Command(Struct, rename="camel", kw_only=True, frozen=True):
    """The fields of every command. job_id decides the partition; command_id makes a second delivery a no-op.

    issued_by: the id of the token of an HTTP caller. It is no field of the record, but a header of it: ISSUER_HEADER.
    """

    command_id: UUID
    tenant: Name
    job_id: UUID
    issued_at: Instant
    issued_by: str | None = None


class CreateJob(Command, frozen=True, kw_only=True):
    spec: JobSpec


class UpdateJob(Command, frozen=True, kw_only=True):
    """effective_from: the new schedule fires only after it, and never before the update is applied.

    if_version: the job's version that the update was made for; at another one it is a conflict.
    """

    spec: JobSpec
    effective_from: Instant | None = None
    if_version: int | None = None


class PauseJob(Command, frozen=True):
    pass


class ResumeJob(Command, frozen=True):
    pass


class DeleteJob(Command, frozen=True, kw_only=True):
    """if_version: as of UpdateJob."""

    if_version: int | None = None


class TriggerJob(Command, frozen=True, kw_only=True):
    payload: str | None = None


class CancelRun(Command, frozen=True, kw_only=True):
    run_id: UUID


class ReplayRun(Command, frozen=True, kw_only=True):
    """due_at: when the dead run is due again, for a pace; None: at once."""

    run_id: UUID
    due_at: Instant | None = None


class BackfillJob(Command, frozen=True, kw_only=True):
    """Run the job's occurrences after `after` up to and with `through`, beside its schedule.

    payload: instead of the job's own.
    """

    after: Instant = field(name="from")
    through: Instant = field(name="to")
    payload: str | None = None


C = TypeVar("C", bound=Command)
_ISSUER = re.compile(rb"[\x21-\x7e]{1,200}")
_TENANT = re.compile(rb"[A-Za-z0-9_.:-]{1,100}")

COMMANDS: dict[str, type[Command]] = {
    kind.__name__: kind
    for kind in (CreateJob, UpdateJob, PauseJob, ResumeJob, DeleteJob, TriggerJob, CancelRun, ReplayRun, BackfillJob)
}
_SPEC_FIELDS = frozenset(each.encode_name for each in msgspec.structs.fields(JobSpec))


def decode_commands(codec: Codec, wire: bytes | None) -> Iterator[Command | CommandRejected]:
    """The commands of one record, in order; one that is invalid comes as its rejection, the others go on.

    A record is of one tenant, that of its first command: by it the tenants of a partition take turns.
    Raises Undecodable (before yielding anything) when the record as a whole cannot be read.
    """
    members = _members(codec, wire)
    for full_name, fields in members:
        try:
            if fields["tenant"] != (tenant := members[0][1]["tenant"]):
                raise ForeignTenant(f"the batch record is of tenant {tenant}, as its first command is", field="tenant")
            yield parse_command(full_name.rpartition(".")[2], fields)
        except CommandRejected as rejection:
            yield rejection


def tenant_of(codec: Codec, wire: bytes | None) -> str:
    """Whose a record is, as `decode_commands` has it; empty when it is nobody's. Reads no more of it than must be.

    A command begins with its id and its tenant, a batch record with the number of its commands, which may be negative
    and is followed by their size then, and the kind of the first.
    """
    try:
        if wire is not None and (name := codec.name_of(wire)) in (*COMMANDS, "CommandBatch"):
            at = codec.body_of(name, wire) or 0
            if name == "CommandBatch":
                count, at = _number(wire, at)
                at = _number(wire, at)[1] if count < 0 else at
                at = _number(wire, at)[1] if count else len(wire)
            length, at = _number(wire, at)
            length, at = _number(wire, at + length)
            tenant = wire[at : at + length]
        else:
            tenant = _members(codec, wire)[0][1]["tenant"].encode()
        return tenant.decode() if _TENANT.fullmatch(tenant) else ""
    except (Undecodable, IndexError):
        return ""


def _number(wire: bytes, at: int) -> tuple[int, int]:
    """Avro's number that begins there, and where it ends. Raises IndexError."""
    number = shift = 0
    while (byte := wire[at]) & 0x80:
        number |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
    number |= byte << shift
    return (number >> 1) ^ -(number & 1), at + 1


def tenants_named(codec: Codec, wire: bytes | None) -> set[str]:
    """Whom the commands of one record name, also those that are invalid, for a later build may take them.

    Raises Undecodable.
    """
    return {fields["tenant"] for _, fields in _members(codec, wire)}


def _members(codec: Codec, wire: bytes | None) -> Sequence[tuple[str, Record]]:
    """The commands of one record, each with the full name of its kind. Raises Undecodable."""
    name, record = codec.decode(wire)
    if name == "CommandBatch":
        members: Sequence[tuple[str, Record]] = record["commands"]
        return members
    if name in COMMANDS:
        return [(f"{NAMESPACE}.{name}", record)]
    raise Undecodable(f"a {name} is no command")


def parse_command(name: str, fields: Record) -> Command:
    """A command from its Avro or JSON fields. Raises CommandRejected naming the field."""
    kind = COMMANDS[name]
    own = {key: value for key, value in fields.items() if value is not None}
    if kind in (CreateJob, UpdateJob):
        own["spec"] = {key: own.pop(key) for key in _SPEC_FIELDS & own.keys()}
        own["spec"]["schedule"] = plain_schedule(own["spec"].get("schedule"))
    command = convert(own, kind)
    spec = getattr(command, "spec", None)
    check_payload(spec.payload if spec else getattr(command, "payload", None))
    return command


def encode_command(codec: Codec, command: Command) -> bytes:
    """The wire bytes of a single command. Raises CommandRejected for a time without a zone."""
    return codec.encode(type(command).__name__, command_record(command))


def issuer_headers(command: Command) -> list[tuple[str, bytes]]:
    """The headers of the command's record."""
    return [] if command.issued_by is None else [(ISSUER_HEADER, command.issued_by.encode())]


def issued_by(command: C, headers: Iterable[tuple[str, bytes]]) -> C:
    """The command as the headers of its record complete it. One who may write to the topic may write any header."""
    for name, value in headers:
        if name == ISSUER_HEADER and _ISSUER.fullmatch(value):
            return msgspec.structs.replace(command, issued_by=value.decode())
    return command


def command_record(command: Command) -> Record:
    """A command as the fields of its Avro record. Raises CommandRejected for a time without a zone.

    Avro would take that for a time of this machine's zone.
    """
    record: Record = msgspec.to_builtins(command, builtin_types=(datetime,))
    del record["issuedBy"]
    for name, value in record.items():
        _check_aware(name, value)
    if spec := record.pop("spec", None):
        record |= spec
        record["schedule"] = _schedule_record(spec["schedule"])
    return record


def parse_spec(body: Any) -> JobSpec:
    """A job's definition from JSON-like fields, checked but for its schedule. Raises CommandRejected."""
    spec = convert(body, JobSpec)
    check_payload(spec.payload)
    return spec


def schedule_of(command: CreateJob | UpdateJob) -> Schedule:
    """The command's schedule, checked; a delay counts from issued_at. Raises InvalidSchedule."""
    return parse_schedule(command.spec.schedule, job_id=command.job_id)


def check_payload(payload: str | None) -> None:
    """Raises CommandRejected unless payload is a JSON document within the caps of size and depth."""
    if payload is None:
        return
    try:
        size = len(payload.encode())
        if size > PAYLOAD_MAX_BYTES:
            raise CommandRejected(f"payload is {size} bytes, more than {PAYLOAD_MAX_BYTES}", field="payload")
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CommandRejected(f"payload is no JSON document: {error}", field="payload") from error
    if is_too_deep(payload):
        raise CommandRejected(f"payload is nested deeper than {MAX_DEPTH} levels", field="payload")


def convert(fields: Any, kind: type[T]) -> T:
    """`fields` as a `kind`. Raises CommandRejected with the field's dotted JSON name."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise rejection_of(error) from error


def rejection_of(error: msgspec.ValidationError) -> CommandRejected:
    """msgspec's "… - at `$.spec.queue`" as a rejection whose field is `queue`."""
    message, _, path = str(error).partition(" - at `$")
    if not path and "missing required field" in message:
        path = "." + message.rpartition("field `")[2].rstrip("`")
    elif "missing required field" in message:
        path = path.rstrip("`") + "." + message.rpartition("field `")[2].rstrip("`")
    return CommandRejected(message, field=path.rstrip("`").removeprefix(".").removeprefix("spec.") or None)


def plain_schedule(schedule: Any) -> Any:
    """A schedule record without its absent fields and with instants as text: the JSON form."""
    if not isinstance(schedule, dict):
        return schedule
    return {key: _text(value) for key, value in schedule.items() if value is not None and value != []}


def _text(value: Any) -> Any:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


_INSTANTS = ("anchor", "runAt", "startAt", "endAt")


def _schedule_record(schedule: Record) -> Record:
    record = {"excludeDates": [], **schedule}
    for key in _INSTANTS:
        value = record.get(key)
        if isinstance(value, str):
            value = record[key] = _instant(key, value)
        _check_aware(f"schedule.{key}", value)
    return record


def _instant(key: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandRejected(f"{text!r} is no instant", field=f"schedule.{key}") from error


def _check_aware(name: str, value: Any) -> None:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise CommandRejected(f"{value.isoformat()} has no zone", field=name)


def definition_json(spec: JobSpec) -> str:
    """What the ledger keeps as a job's definition: canonical JSON with its defaults, without the payload."""
    definition = msgspec.to_builtins(spec)
    del definition["payload"]
    return msgspec.json.encode(definition, order="sorted").decode()
