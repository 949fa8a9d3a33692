"""What the client puts on the wire is what the server reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fencepost
from fencepost import InvalidInput, JobSpec, Schedule
from fencepost.commands import (
    backfill_command,
    create_command,
    job_command,
    replay_command,
    run_command,
    trigger_command,
    update_command,
)
from fencepost.job_spec import parse_spec, spec_fields
from fencepost.wire import encode_command, record_of
from schemas.codec import Codec
from schemas.commands import (
    BackfillJob,
    CancelRun,
    Command,
    CreateJob,
    PauseJob,
    ReplayRun,
    TriggerJob,
    UpdateJob,
    decode_commands,
)

NINE = datetime(2026, 3, 1, 9, 0, 0, 123456, UTC)


def read(*encoded: Any) -> list[Command]:
    """What the server makes of the record of these commands; none may be rejected."""
    commands = list(decode_commands(Codec(), record_of(encoded)))
    assert all(isinstance(command, Command) for command in commands), commands
    return commands  # type: ignore[return-value]


def created(spec: JobSpec, job_id: UUID | None = None) -> CreateJob:
    [command] = read(encode_command("CreateJob", create_command("acme", job_id or uuid4(), spec)))
    assert isinstance(command, CreateJob)
    return command


def test_server_reads_a_create_with_every_field() -> None:
    job_id = uuid4()
    spec = JobSpec(
        queue="mail",
        schedule=fencepost.cron("0 9 * * *", "Europe/Berlin"),
        lane="high",
        name="daily mail",
        payload={"to": ["ops"], "n": 1.5},
        max_attempts=3,
        timeout_seconds=60,
        catch_up="all",
        overlap="skip",
        start_deadline_seconds=900,
    )
    command = created(spec, job_id)
    assert (command.job_id, command.tenant) == (job_id, "acme")
    assert abs(datetime.now(UTC) - command.issued_at) < timedelta(seconds=5)
    assert command.spec.schedule == {"cron": "0 9 * * *", "zone": "Europe/Berlin"}
    assert command.spec.payload == '{"to":["ops"],"n":1.5}'
    assert (command.spec.queue, command.spec.lane, command.spec.name) == ("mail", "high", "daily mail")
    assert (command.spec.max_attempts, command.spec.timeout_seconds) == (3, 60)
    assert (command.spec.catch_up, command.spec.overlap) == ("all", "skip")
    assert command.spec.start_deadline_seconds == 900


@pytest.mark.parametrize(
    ("schedule", "read_as"),
    [
        (fencepost.every(60), {"everySeconds": 60}),
        (fencepost.every(60, anchor=NINE), {"everySeconds": 60, "anchor": "2026-03-01T09:00:00.123456Z"}),
        (fencepost.at(NINE), {"runAt": "2026-03-01T09:00:00.123456Z"}),
        (fencepost.at(NINE.astimezone(timezone(timedelta(hours=-5)))), {"runAt": "2026-03-01T09:00:00.123456Z"}),
        (fencepost.after(0.25), {"delaySeconds": 0.25}),
        (
            Schedule(cron="@daily", exclude_dates=["2026-12-25"], jitter_seconds=5, start_at=NINE, end_at=NINE),
            {
                "cron": "@daily",
                "excludeDates": ["2026-12-25"],
                "jitterSeconds": 5,
                "startAt": "2026-03-01T09:00:00.123456Z",
                "endAt": "2026-03-01T09:00:00.123456Z",
            },
        ),
    ],
)
def test_server_reads_every_kind_of_schedule(schedule: Schedule, read_as: dict[str, Any]) -> None:
    assert created(JobSpec(queue="q", schedule=schedule)).spec.schedule == read_as


def test_server_reads_a_batch_in_order() -> None:
    job_id, key_id = uuid4(), uuid4()
    commands = read(
        encode_command("CreateJob", create_command("acme", job_id, JobSpec(queue="q", schedule=fencepost.every(5)))),
        encode_command("PauseJob", job_command("acme", job_id, key_id)),
        encode_command("TriggerJob", trigger_command("acme", job_id, {"n": 1}, None)),
        encode_command("ResumeJob", job_command("acme", job_id)),
        encode_command("DeleteJob", job_command("acme", job_id)),
    )
    assert [type(command).__name__ for command in commands] == [
        "CreateJob",
        "PauseJob",
        "TriggerJob",
        "ResumeJob",
        "DeleteJob",
    ]
    pause, trigger = commands[1:3]
    assert isinstance(pause, PauseJob)
    assert pause.command_id == key_id
    assert isinstance(trigger, TriggerJob)
    assert trigger.payload == '{"n":1}'


def test_server_reads_an_edit_with_all_its_policies() -> None:
    job_id, spec = uuid4(), JobSpec(
        queue="q", schedule=fencepost.every(60), retry_backoff="fixed", retry_base_seconds=2, retry_max_seconds=9,
        catch_up="all", catch_up_limit=5, payload=[1], concurrency_key="customer-42",
    )  # fmt: skip
    [command] = read(encode_command("UpdateJob", update_command("acme", job_id, spec, NINE, None)))
    assert isinstance(command, UpdateJob)
    assert (command.job_id, command.effective_from, command.spec.payload) == (job_id, NINE, "[1]")
    assert (command.spec.retry_backoff, command.spec.retry_base_seconds, command.spec.retry_max_seconds) == (
        "fixed", 2, 9,
    )  # fmt: skip
    assert (command.spec.catch_up, command.spec.catch_up_limit) == ("all", 5)
    assert command.spec.concurrency_key == "customer-42"


def test_server_reads_commands_about_runs_and_ranges() -> None:
    job_id, run_id, key_id = uuid4(), uuid4(), uuid4()
    end = NINE + timedelta(hours=1)
    backfill, cancel, replay, at_once = read(
        encode_command("BackfillJob", backfill_command("acme", job_id, NINE, end, {"n": 1}, key_id)),
        encode_command("CancelRun", run_command("acme", job_id, run_id, None)),
        encode_command("ReplayRun", replay_command("acme", job_id, run_id, NINE, None)),
        encode_command("ReplayRun", replay_command("acme", job_id, run_id, None, None)),
    )
    assert isinstance(backfill, BackfillJob)
    assert (backfill.command_id, backfill.after, backfill.through, backfill.payload) == (key_id, NINE, end, '{"n":1}')
    assert isinstance(cancel, CancelRun)
    assert (cancel.job_id, cancel.run_id) == (job_id, run_id)
    assert isinstance(replay, ReplayRun)
    assert isinstance(at_once, ReplayRun)
    assert (replay.run_id, replay.due_at, at_once.due_at) == (run_id, NINE, None)


@pytest.mark.parametrize("field", ["effectiveFrom", "from", "to", "dueAt"])
def test_an_instant_without_a_zone_is_refused_by_name(field: str) -> None:
    naive, job_id = datetime(2026, 3, 1), uuid4()
    makers: dict[str, Callable[[], object]] = {
        "effectiveFrom": lambda: update_command(
            "acme", job_id, JobSpec(queue="q", schedule=fencepost.every(5)), naive, None
        ),
        "from": lambda: backfill_command("acme", job_id, naive, NINE, None, None),
        "to": lambda: backfill_command("acme", job_id, NINE, naive, None, None),
        "dueAt": lambda: replay_command("acme", job_id, job_id, naive, None),
    }
    with pytest.raises(InvalidInput, match="no zone") as caught:
        makers[field]()
    assert caught.value.field == field


@given(st.integers(1, 300))
def test_batch_of_any_length_is_read_whole(count: int) -> None:
    job_ids = [uuid4() for _ in range(count)]
    commands = read(*[encode_command("PauseJob", job_command("acme", job_id)) for job_id in job_ids])
    assert [command.job_id for command in commands] == job_ids


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values.filter(lambda value: value is not None))
def test_any_json_payload_is_a_document_for_the_server(payload: Any) -> None:
    assert created(JobSpec(queue="q", schedule=fencepost.every(5), payload=payload)).spec.payload is not None


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"queue": ""}, "queue", "length"),
        ({"queue": "no spaces"}, "queue", "match"),
        ({"lane": "urgent"}, "lane", "urgent"),
        ({"max_attempts": 0}, "maxAttempts", ">= 1"),
        ({"timeout_seconds": -1.0}, "timeoutSeconds", "> 0"),
        ({"payload": "x" * 65_536}, "payload", "65538 bytes"),
        ({"payload": object()}, "payload", "no JSON"),
        ({"payload": "\ud800"}, "payload", "no JSON"),
        ({"schedule": Schedule()}, "schedule", "not none"),
        ({"schedule": Schedule(cron="@daily", every_seconds=5)}, "schedule", "not cron and everySeconds"),
        ({"schedule": Schedule(every_seconds=0)}, "schedule.everySeconds", ">= 1"),
        ({"schedule": Schedule(run_at=datetime(2026, 3, 1))}, "schedule.runAt", "timezone"),
        ({"schedule": "@daily"}, "schedule", "object"),
    ],
)
def test_spec_that_cannot_be_right_is_refused_with_the_field_named(
    change: dict[str, Any], field: str, reason: str
) -> None:
    fields: dict[str, Any] = {"queue": "q", "schedule": fencepost.every(5)} | change
    spec = JobSpec(**fields)
    with pytest.raises(InvalidInput, match=reason) as caught:
        create_command("acme", uuid4(), spec)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"queue": "q"}, "schedule"),
        ({"queue": "q", "schedule": {"cron": "@daily", "zon": "UTC"}}, "zon"),
        ({"queue": "q", "schedule": {"cron": "@daily"}, "maxAttempt": 3}, "maxAttempt"),
        ([], "object"),
    ],
)
def test_typo_in_the_json_form_does_not_pass_silently(fields: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_spec(fields)


def test_json_form_of_a_spec_reads_back_as_the_same_spec() -> None:
    spec = JobSpec(queue="q", schedule=fencepost.at(NINE), payload=[1, {"a": None}])
    assert parse_spec(spec_fields(spec)) == spec
