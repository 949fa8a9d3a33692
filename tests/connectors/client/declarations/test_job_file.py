"""A file of jobs means what it says, and every mistake in it is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.declarations.errors import InvalidJobFile
from fencepost.declarations.job_file import parse_job_file, read_job_file
from fencepost.errors import InvalidInput
from tests.connectors.client.declarations.declared import TENANT, declared, job

CRON = '{cron: "0 9 * * *", zone: Europe/Berlin}'


def test_a_job_has_every_field_of_its_definition() -> None:
    found = declared(f"jobs:\n  mails: {job(CRON, payload='{to: ops}', maxAttempts=3)}\n")
    assert found.name == "billing"
    assert found.jobs["mails"] == {
        "queue": "mail",
        "schedule": {"cron": "0 9 * * *", "zone": "Europe/Berlin"},
        "lane": "normal",
        "name": None,
        "payload": {"to": "ops"},
        "maxAttempts": 3,
        "timeoutSeconds": None,
        "catchUp": "latest",
        "overlap": "allow",
        "startDeadlineSeconds": None,
        "retryBackoff": "exponential",
        "retryBaseSeconds": 1.0,
        "retryMaxSeconds": 600.0,
        "catchUpLimit": 1000,
        "concurrencyKey": None,
    }


@pytest.mark.parametrize(
    ("text", "set_name", "name"),
    [
        ("jobs: {}", None, "billing"),
        ("set: mails\njobs: {}", None, "mails"),
        ("set: mails\njobs: {}", "other", "other"),
    ],
)
def test_the_set_is_told_or_in_the_file_or_the_files_name(text: str, set_name: str | None, name: str) -> None:
    assert declared(text, set_name=set_name).name == name


def test_an_interval_without_an_anchor_counts_from_1970_so_that_a_plan_can_tell_its_times() -> None:
    found = declared(f"jobs:\n  sync: {job('{everySeconds: 300}')}")
    assert found.jobs["sync"]["schedule"] == {"everySeconds": 300, "anchor": "1970-01-01T00:00:00Z"}


def test_a_local_time_with_a_zone_is_the_same_as_its_instant() -> None:
    local = declared(f"jobs:\n  once: {job('{runAt: 2026-07-01T09:00, zone: Europe/Berlin}')}")
    instant = declared(f"jobs:\n  once: {job('{runAt: 2026-07-01T07:00:00Z}')}")
    assert local == instant


def test_texts_that_yaml_1_1_takes_for_dates_numbers_and_truths_stay_texts() -> None:
    body = job('{cron: "0 9 * * *", excludeDates: [2026-12-25]}', payload="{country: no, at: 12:30, day: 2026-01-02}")
    found = declared(f"jobs:\n  mails: {body}")
    assert found.jobs["mails"]["payload"] == {"country": "no", "at": "12:30", "day": "2026-01-02"}
    assert found.jobs["mails"]["schedule"]["excludeDates"] == ["2026-12-25"]


def test_jobs_may_share_fields_by_anchors_and_merge_keys() -> None:
    found = declared(f"jobs:\n  a: &a {job(CRON, maxAttempts=3)}\n  b: {{<<: *a, queue: other}}")
    assert found.jobs["b"] == {**found.jobs["a"], "queue": "other"}


@pytest.mark.parametrize(
    ("text", "place", "field", "message"),
    [
        ("jobs:\n  a: {queue: q, schedule: {cron: '61 * * * *'}}", "2:28", "jobs.a.schedule.cron", "out of range"),
        (
            "jobs:\n  a:\n    queue: q\n    schedul: 1\n    schedule: {everySeconds: 3}",
            "4:5",
            "jobs.a.schedul",
            "no such",
        ),
        ("jobs:\n  a: {queue: q, schedule: {everySeconds: 3, evry: 4}}", "2:45", "jobs.a.schedule.evry", "no such"),
        ("jobs:\n  a: {queue: q}", "2:3", "jobs.a.schedule", "a schedule is an object"),
        ("jobs:\n  a: {schedule: {everySeconds: 3}}", "2:3", "jobs.a", "required field `queue`"),
        ("jobs:\n  a: {queue: 12, schedule: {everySeconds: 3}}", "2:7", "jobs.a.queue", "Expected `str`"),
        ("jobs:\n  a: {queue: q, schedule: {delaySeconds: 3}}", "2:28", "jobs.a.schedule.delaySeconds", "use runAt"),
        ("jobs:\n  a: {queue: q, declaredAs: x/y}", "2:17", "jobs.a.declaredAs", "names of the set"),
        ("jobs:\n  a: 12", "2:3", "jobs.a", "a mapping"),
        ("jobs:\n  a b: {}", "2:3", "jobs.a b", "no name"),
        ("jobs:\n  a: {}\n  a: {}", "3:3", None, "a is there twice"),
        ("jobs:\n  a: [", "2:7", None, "expected"),
        ("jobs: []", "1:1", "jobs", "a mapping"),
        ("set: a/b\njobs: {}", "1:1", "set", "no name"),
        ("sets: a\njobs: {}", "1:1", "sets", "no field of the file"),
        ("jobs:\n  a: {queue: q, schedule: !!python/name:os.system }", "2:27", None, "constructor"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_field(text: str, place: str, field: str | None, message: str) -> None:
    with pytest.raises(InvalidJobFile) as caught:
        declared(text)
    assert caught.value.place == f"billing.yaml:{place}"
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a", "a: \x01", "[" * 5000])
def test_what_is_no_mapping_or_no_yaml_is_no_file_of_jobs(text: str) -> None:
    with pytest.raises(InvalidJobFile, match=r"^billing\.yaml"):
        declared(text)


LAUGHS = "\n".join(f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (f"\n  - &a0 [x]\n{LAUGHS}", "with its aliases written out it has more than 1,000,000 values"),
        ("&a [1, *a]", "an alias stands for what it is a part of"),
        ("!!int x", "it is no number"),
        ("!!float 1.x", "it is no number"),
        ("1" * 5_000, "it is no number"),
    ],
    ids=["laughs", "circle", "no whole number", "no number", "too many digits"],
)
def test_values_without_end_and_numbers_that_are_none_are_told_with_their_place(payload: str, message: str) -> None:
    text = f"jobs: {{a: {{queue: q, schedule: {{everySeconds: 60}}}}}}\npayload: {payload}\n"
    with pytest.raises(InvalidJobFile, match=message) as refusal:
        parse_job_file(text, file="jobs.yaml", tenant="acme")
    assert refusal.value.place.startswith("jobs.yaml:")


def test_names_that_are_too_long_for_a_key_together_are_refused() -> None:
    with pytest.raises(InvalidJobFile, match="180 characters"):
        declared(f"jobs:\n  {'a' * 90}: {job(CRON)}", set_name="b" * 91)


def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_bytes(b"\xff\xfe\xfd")
    for name in ("jobs.yaml", "none.yaml"):
        with pytest.raises(InvalidInput, match="cannot be read"):
            read_job_file(tmp_path / name, tenant=TENANT)
