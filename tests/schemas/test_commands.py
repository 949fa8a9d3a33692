"""Commands: what a producer may ask, checked without a look at the ledger; a wrong one names its field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from time import thread_time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from schemas.codec import NAMESPACE, Codec
from schemas.commands import (
    COMMANDS,
    LANES,
    PAYLOAD_MAX_BYTES,
    RETRY_BACKOFFS,
    Command,
    CreateJob,
    JobSpec,
    PauseJob,
    TriggerJob,
    UpdateJob,
    command_record,
    decode_commands,
    definition_json,
    encode_command,
    parse_command,
    parse_spec,
    tenant_of,
)
from schemas.errors import CommandRejected, Undecodable
from schemas.json_depth import MAX_DEPTH

CODEC = Codec()
ID = "0197a5f0-0000-7000-8000-000000000001"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
COMMON: dict[str, Any] = {"commandId": ID, "tenant": "acme", "jobId": ID, "issuedAt": AT}
CREATE: dict[str, Any] = {**COMMON, "queue": "mail", "schedule": {"cron": "* * * * *"}}
LONG_TEXT = '"' + "x" * PAYLOAD_MAX_BYTES + '"'
DEEP = "[" * 30_000 + "]" * 30_000

names = st.text("abcXYZ019_.:-", min_size=1, max_size=100)
seconds = st.floats(0.001, 366 * 86400)
instants = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
texts = instants.map(lambda instant: instant.isoformat().replace("+00:00", "Z"))
payloads = st.none() | st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
).map(json.dumps)
schedules = st.one_of(
    st.fixed_dictionaries({"cron": st.just("5 4 * * *")}, optional={"zone": st.just("Europe/Paris"), "startAt": texts}),
    st.fixed_dictionaries(
        {"everySeconds": st.integers(1, 10**6)},
        optional={"anchor": texts, "endAt": texts, "jitterSeconds": seconds},
    ),
    st.fixed_dictionaries({"runAt": texts}),
    st.fixed_dictionaries({"delaySeconds": seconds}),
)
specs = st.builds(
    JobSpec,
    queue=names,
    schedule=schedules,
    lane=st.sampled_from(LANES),
    name=st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
    payload=payloads,
    max_attempts=st.integers(1, 100),
    timeout_seconds=st.none() | seconds,
    catch_up=st.sampled_from(["latest", "all", "none"]),
    overlap=st.sampled_from(["allow", "skip", "replace"]),
    start_deadline_seconds=st.none() | seconds,
    retry_backoff=st.sampled_from(RETRY_BACKOFFS),
    retry_base_seconds=seconds,
    retry_max_seconds=seconds,
    catch_up_limit=st.integers(1, 100_000),
    concurrency_key=st.none()
    | st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=200),
)
OWN_FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "CreateJob": {"spec": specs},
    "UpdateJob": {"spec": specs, "effective_from": st.none() | instants},
    "TriggerJob": {"payload": payloads},
    "CancelRun": {"run_id": st.uuids()},
    "ReplayRun": {"run_id": st.uuids(), "due_at": st.none() | instants},
    "BackfillJob": {"after": instants, "through": instants, "payload": payloads},
}


def commands_of(name: str) -> st.SearchStrategy[Command]:
    common = {"command_id": st.uuids(), "tenant": names, "job_id": st.uuids(), "issued_at": instants}
    return st.builds(COMMANDS[name], **common, **OWN_FIELDS.get(name, {}))


any_command = st.sampled_from(sorted(COMMANDS)).flatmap(commands_of)


@pytest.mark.parametrize("name", COMMANDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_valid_command_comes_back_as_it_was_sent(name: str, data: st.DataObject) -> None:
    command = data.draw(commands_of(name))
    assert list(decode_commands(CODEC, encode_command(CODEC, command))) == [command]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_command, max_size=6))
def test_a_batch_gives_its_commands_in_order(commands: list[Command]) -> None:
    commands = [structs.replace(command, tenant="acme") for command in commands]
    assert list(decode_commands(CODEC, batch(*commands))) == commands


def batch(*commands: Command | tuple[str, dict[str, Any]]) -> bytes:
    """A batch of commands, or of fields that are none."""
    members = [
        (f"{NAMESPACE}.{type(each).__name__}", command_record(each)) if isinstance(each, Command) else each
        for each in commands
    ]
    return CODEC.encode("CommandBatch", {"commands": members})


PAUSE = PauseJob(command_id=UUID(ID), tenant="acme", job_id=UUID(ID), issued_at=AT)


def test_one_bad_command_of_a_batch_is_rejected_by_itself() -> None:
    bad = (f"{NAMESPACE}.PauseJob", {**COMMON, "jobId": "no uuid"})
    deep = (f"{NAMESPACE}.TriggerJob", {**COMMON, "payload": DEEP})
    first, rejected, second, too_deep, third = decode_commands(CODEC, batch(PAUSE, bad, PAUSE, deep, PAUSE))
    assert [first, second, third] == [PAUSE] * 3
    assert isinstance(rejected, CommandRejected)
    assert (rejected.code, rejected.field) == ("invalid", "jobId")
    assert isinstance(too_deep, CommandRejected)
    assert too_deep.field == "payload"


def test_a_command_of_another_tenant_than_the_first_of_its_batch_is_rejected() -> None:
    foreign = structs.replace(PAUSE, tenant="globex")
    first, rejected, second = decode_commands(CODEC, batch(PAUSE, foreign, PAUSE))
    assert [first, second] == [PAUSE] * 2
    assert isinstance(rejected, CommandRejected)
    assert (rejected.code, rejected.field) == ("tenant_forbidden", "tenant")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_command, min_size=1, max_size=3))
def test_a_record_s_tenant_is_read_without_the_rest_of_it(commands: list[Command]) -> None:
    tenant = commands[0].tenant
    assert tenant_of(CODEC, encode_command(CODEC, commands[0])) == tenant
    assert tenant_of(CODEC, batch(*commands)) == tenant


def test_an_older_writer_s_record_is_read_as_a_whole_for_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = encode_command(CODEC, PAUSE)
    monkeypatch.setattr(Codec, "name_of", lambda *_: None)
    assert tenant_of(CODEC, wire) == "acme"


@pytest.mark.parametrize(
    "wire",
    [
        None, b"", b"garbage", batch(), encode_command(CODEC, PAUSE)[:20],
        batch((f"{NAMESPACE}.PauseJob", {**COMMON, "tenant": "no name"})),
        batch((f"{NAMESPACE}.PauseJob", {**COMMON, "tenant": "x" * 101})),
        batch((f"{NAMESPACE}.PauseJob", {**COMMON, "tenant": "\0"})),
    ],
)  # fmt: skip
def test_what_names_no_tenant_is_nobody_s(wire: bytes | None) -> None:
    assert tenant_of(CODEC, wire) == ""


@pytest.mark.parametrize("name", ["RunEvents", "ReadyHints", "RejectedCommand"])
def test_a_record_that_is_no_command_is_undecodable(name: str) -> None:
    records: dict[str, dict[str, Any]] = {
        "RunEvents": {"partition": 1, "events": []},
        "ReadyHints": {"tenant": "t", "queue": "q", "lane": "low", "partition": 1, "epoch": 2, "runIds": b""},
        "RejectedCommand": {"code": "c", "reason": "r", "partition": 1, "offset": 2, "rejectedAt": AT},
    }
    with pytest.raises(Undecodable, match=f"a {name} is no command"):
        list(decode_commands(CODEC, CODEC.encode(name, records[name])))


def test_an_undecodable_record_yields_nothing() -> None:
    with pytest.raises(Undecodable):
        next(decode_commands(CODEC, b"\x00\x00\x00\x00\x09\x02\x00"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("commandId", "no uuid"),
        ("commandId", 7),
        ("jobId", ""),
        ("jobId", ID[:-1]),
        ("tenant", ""),
        ("tenant", "a b"),
        ("tenant", "x" * 101),
        ("tenant", 5),
        ("issuedAt", "yesterday"),
        ("issuedAt", "2026-03-01T12:00:00"),
        ("issuedAt", datetime(2026, 3, 1)),
        ("issuedAt", 5),
        ("queue", ""),
        ("queue", "my mail"),
        ("queue", "mail\n"),
        ("queue", "\nmail"),
        ("queue", "ma/il"),
        ("queue", "mäil"),
        ("queue", "m,n"),
        ("queue", "x" * 101),
        ("queue", ["mail"]),
        ("lane", "urgent"),
        ("lane", 1),
        ("lane", "High"),
        ("name", "x" * 201),
        ("name", 5),
        ("schedule", "* * * * *"),
        ("schedule", []),
        ("payload", "{"),
        ("payload", ""),
        ("payload", "NaN"),
        ("payload", "{'a': 1}"),
        ("payload", "1 2"),
        ("payload", '"\ud800"'),
        ("payload", LONG_TEXT),
        ("payload", DEEP),
        ("payload", {"a": 1}),
        ("maxAttempts", 0),
        ("maxAttempts", 101),
        ("maxAttempts", "5"),
        ("maxAttempts", 5.5),
        ("maxAttempts", True),
        ("timeoutSeconds", 0),
        ("timeoutSeconds", -1.0),
        ("timeoutSeconds", 366 * 86400 + 1),
        ("timeoutSeconds", float("nan")),
        ("timeoutSeconds", float("inf")),
        ("timeoutSeconds", "5"),
        ("startDeadlineSeconds", 0),
        ("startDeadlineSeconds", "soon"),
        ("catchUp", "some"),
        ("catchUp", True),
        ("overlap", "queue"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    for name in ("CreateJob", "UpdateJob"):
        with pytest.raises(CommandRejected) as rejected:
            parse_command(name, {**CREATE, field: value})
        assert (rejected.value.field, rejected.value.code) == (field, "invalid")
        assert rejected.value.message


@pytest.mark.parametrize("missing", ["commandId", "tenant", "jobId", "issuedAt", "queue", "schedule"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {key: value for key, value in CREATE.items() if key != missing}
    with pytest.raises(CommandRejected) as rejected:
        parse_command("CreateJob", fields)
    assert rejected.value.field == missing


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("TriggerJob", {"payload": "{"}, "payload"),
        ("TriggerJob", {"payload": LONG_TEXT}, "payload"),
        ("CancelRun", {}, "runId"),
        ("ReplayRun", {"runId": "run-1"}, "runId"),
        ("UpdateJob", {**CREATE, "effectiveFrom": datetime(2026, 3, 1)}, "effectiveFrom"),
    ],
)
def test_a_wrong_field_of_other_commands_is_named(name: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(CommandRejected) as rejected:
        parse_command(name, {**COMMON, **fields})
    assert rejected.value.field == field


def test_a_payload_of_exactly_the_cap_is_taken_and_its_bytes_are_what_counts() -> None:
    largest = '"' + "x" * (PAYLOAD_MAX_BYTES - 2) + '"'
    umlauts = '"' + "ä" * (PAYLOAD_MAX_BYTES // 2) + '"'
    parse_command("CreateJob", {**CREATE, "payload": largest})
    with pytest.raises(CommandRejected, match=r"65538 bytes.*65536"):
        parse_command("CreateJob", {**CREATE, "payload": umlauts})


@pytest.mark.parametrize("name", ["CreateJob", "UpdateJob", "TriggerJob", "BackfillJob"])
def test_a_payload_as_deep_as_may_be_is_taken_and_a_deeper_one_rejected(name: str) -> None:
    fields = {"BackfillJob": COMMON | {"from": AT, "to": AT}, "TriggerJob": COMMON}.get(name, CREATE)
    parse_command(name, fields | {"payload": "[" * MAX_DEPTH + "]" * MAX_DEPTH})
    with pytest.raises(CommandRejected, match="nested deeper than 128 levels") as rejection:
        parse_command(name, fields | {"payload": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)})
    assert rejection.value.field == "payload"


def test_a_payload_that_is_no_json_is_refused_before_its_depth_is_asked_for() -> None:
    began = thread_time()
    with pytest.raises(CommandRejected, match="no JSON document"):
        parse_command("TriggerJob", COMMON | {"payload": "[" * 200 + '"\\' * 30_000})
    assert thread_time() - began < 0.5


def test_a_wrong_field_of_a_json_body_is_named() -> None:
    with pytest.raises(CommandRejected) as rejected:
        parse_spec({"queue": "mail", "schedule": {}, "maxAttempts": "5"})
    assert rejected.value.field == "maxAttempts"


def test_absent_fields_have_their_defaults() -> None:
    command = parse_command("CreateJob", CREATE)
    assert isinstance(command, CreateJob)
    assert command.spec == JobSpec(queue="mail", schedule={"cron": "* * * * *"})
    assert (command.spec.lane, command.spec.max_attempts, command.spec.catch_up) == ("normal", 5, "latest")


@pytest.mark.parametrize("key", ["runAt", "anchor", "startAt", "endAt"])
@pytest.mark.parametrize("value", ["2026-03-01T12:00:00", "2026-13-01T12:00:00Z", "soon", datetime(2026, 3, 1)])
def test_a_schedule_s_time_that_is_no_instant_is_not_encoded(key: str, value: Any) -> None:
    """Avro would take a time without a zone for one of this machine's zone."""
    spec = JobSpec(queue="mail", schedule={"everySeconds": 5, key: value})
    command = CreateJob(command_id=UUID(ID), tenant="acme", job_id=UUID(ID), issued_at=AT, spec=spec)
    with pytest.raises(CommandRejected) as rejected:
        encode_command(CODEC, command)
    assert rejected.value.field == f"schedule.{key}"


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (PauseJob(command_id=UUID(ID), tenant="a", job_id=UUID(ID), issued_at=datetime(2026, 3, 1)), "issuedAt"),
        (
            UpdateJob(
                command_id=UUID(ID),
                tenant="a",
                job_id=UUID(ID),
                issued_at=AT,
                spec=JobSpec(queue="mail", schedule={"everySeconds": 5}),
                effective_from=datetime(2026, 3, 1),
            ),
            "effectiveFrom",
        ),
    ],
    ids=["issuedAt", "effectiveFrom"],
)
def test_a_command_s_time_without_a_zone_is_not_encoded(command: Command, field: str) -> None:
    with pytest.raises(CommandRejected) as rejected:
        encode_command(CODEC, command)
    assert rejected.value.field == field


def test_a_time_of_another_zone_is_the_same_instant() -> None:
    elsewhere = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    command = TriggerJob(command_id=UUID(ID), tenant="acme", job_id=UUID(ID), issued_at=elsewhere)
    [decoded] = decode_commands(CODEC, encode_command(CODEC, command))
    assert isinstance(decoded, TriggerJob)
    assert (decoded.issued_at, decoded.issued_at.utcoffset()) == (AT, timedelta())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs)
def test_a_definition_is_canonical_and_leaves_the_payload_out(spec: JobSpec) -> None:
    text = definition_json(spec)
    fields = json.loads(text)
    assert "payload" not in fields
    assert list(fields) == sorted(fields)
    again = parse_spec({**fields, "payload": spec.payload})
    assert again == spec
    assert definition_json(again) == text
