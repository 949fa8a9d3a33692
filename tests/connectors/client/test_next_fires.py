"""`fencepost next`: the rules of the server, in a shell that has no server."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from bench.next_fire import CORPUS
from fencepost.cli import main
from fencepost.commandline.fire_requests import answer_line
from schemas.errors import InvalidSchedule
from schemas.schedule import instant_text, next_fire, parse_schedule

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
]
FENCEPOST = [sys.executable, "-m", "fencepost"]
JOB_ID = "0190a6c8-0000-7000-8000-00000000000a"


def next_(*args: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["next", *args], input=stdin, env={"FENCEPOST_URL": ""}, catch_exceptions=False)


def fires(*args: str) -> list[str]:
    result = next_(*args, "--json")
    assert result.exit_code == 0, result.output
    found: list[str] = json.loads(result.stdout)["fires"]
    return found


def refusal(*args: str) -> dict[str, Any]:
    result = next_(*args, "--json")
    assert (result.exit_code, result.stderr) == (2, "")
    found: dict[str, Any] = json.loads(result.stdout)
    assert set(found) == {"error", "field"}
    return found


def batch(questions: list[Any]) -> list[Any]:
    """The answers of a real process."""
    asked = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run([*FENCEPOST, "next", "--batch"], input=asked, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- one schedule


def test_json_is_the_fires_and_nothing_else() -> None:
    args = ["0 3 * * *", "--zone", "America/New_York", "--from", "2024-03-10T00:00:00Z", "--count", "2"]
    assert next_(*args, "--json").stdout == '{"fires":["2024-03-10T07:00:00Z","2024-03-11T07:00:00Z"]}\n'


def test_fires_are_strictly_after_the_instant_whatever_its_offset() -> None:
    assert fires("0 9 * * *", "--from", "2024-03-10T10:00:00+01:00", "--count", "1") == ["2024-03-11T09:00:00Z"]
    assert fires("0 9 * * *", "--from", "2024-03-10T09:59:59.999999+01:00", "--count", "1") == ["2024-03-10T09:00:00Z"]


def test_without_an_instant_the_fires_are_those_after_now() -> None:
    before = datetime.now(UTC)
    found = [datetime.fromisoformat(fire) for fire in fires("* * * * *")]
    assert len(found) == 5
    assert before < found[0]
    assert (found[0] - before).total_seconds() <= 61


def test_a_table_shows_both_clocks_and_names_the_night_that_moves_a_fire() -> None:
    args = ["30 2 * * *", "--zone", "Europe/Paris", "--from", "2026-03-28T00:00:00Z", "--count", "2"]
    assert next_(*args).stdout.splitlines() == [
        "Europe/Paris                   UTC",
        "Sat 2026-03-28 02:30:00+01:00  2026-03-28T01:30:00Z",
        "Sun 2026-03-29 03:00:00+02:00  2026-03-29T01:00:00Z  moved: 02:30 does not exist that night",
    ]


def test_a_table_tells_which_of_two_equal_readings_is_meant() -> None:
    where = ["--zone", "America/New_York", "--from", "2024-11-03T05:00:00Z"]
    assert next_("30 1 * * *", *where, "--count", "1").stdout.endswith("01:30 occurs twice, the first is taken\n")
    first, second = next_("30 * * * *", *where, "--count", "2").stdout.splitlines()[1:]
    assert first.endswith("2024-11-03T05:30:00Z  01:30 occurs twice, this is the first")
    assert second.endswith("2024-11-03T06:30:00Z  01:30 occurs twice, this is the second")


def test_a_table_names_the_day_that_a_zone_left_out() -> None:
    result = next_("30 9 * * *", "--zone", "Pacific/Apia", "--from", "2011-12-30T00:00:00Z", "--count", "1")
    assert result.stdout.endswith("moved: 2011-12-30 09:30 does not exist\n")


def test_fewer_fires_than_wanted_are_all_printed() -> None:
    late = ["0 0 29 2 *", "--from", "2495-01-01T00:00:00Z"]
    assert fires(*late) == ["2496-02-29T00:00:00Z"]
    assert "then never again" in next_(*late).stderr
    late[2] = "2499-01-01T00:00:00Z"
    assert fires(*late) == []
    assert next_(*late).stderr == "never\n"


def test_hash_is_that_of_the_job_however_its_id_is_written() -> None:
    when = ["H H * * *", "--from", "2024-01-01T00:00:00Z", "--count", "1"]
    schedule = parse_schedule({"cron": "H H * * *"}, job_id=JOB_ID)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    expected = next_fire(schedule, start, job_id=JOB_ID, created_at=start)
    assert expected is not None
    assert fires(*when, "--job-id", JOB_ID) == fires(*when, "--job-id", JOB_ID.upper()) == [instant_text(expected)]
    assert fires(*when) != [instant_text(expected)]
    assert "--job-id" in next_(*when).stderr
    assert next_(*when, "--job-id", JOB_ID).stderr == ""


def test_an_interval_counts_from_its_anchor_or_from_the_instant() -> None:
    since = ["--every", "90", "--from", "2026-01-01T00:01:00Z", "--count", "2"]
    assert fires(*since) == ["2026-01-01T00:02:30Z", "2026-01-01T00:04:00Z"]
    assert fires(*since, "--anchor", "2026-01-01T00:00:00.25Z") == [
        "2026-01-01T00:01:30.250000Z",
        "2026-01-01T00:03:00.250000Z",
    ]


@pytest.mark.parametrize(
    ("args", "field", "reason"),
    [
        (["61 * * * *"], "expr", "minute"),
        (["0 0 30 2 *"], "expr", "can never fire"),
        ([""], "expr", "empty"),
        ([], "expr", "cron expression"),
        (["@daily", "--every", "60"], "expr", "either"),
        (["@daily", "--zone", "Mars/Phobos"], "zone", "unknown time zone"),
        (["@daily", "--from", "2024-03-10T07:00:00"], "from", "without a zone"),
        (["@daily", "--from", "tomorrow"], "from", "no instant"),
        (["@daily", "--count", "0"], "count", "range"),
        (["@daily", "--count", "many"], "count", "integer"),
        (["@daily", "--job-id", "ü"], "jobId", "ASCII"),
        (["@daily", "--anchor", "2024-03-10T07:00:00Z"], "anchor", "--every"),
        (["--every", "0"], "everySeconds", "whole number"),
        (["--every", "x"], "everySeconds", "integer"),
        (["--every", "60", "--anchor", "2024"], "anchor", "instant"),
        (["--every", "60", "--zone", "UTC"], "zone", "every zone"),
        (["@daily", "--zoned"], None, "No such option"),
    ],
)
def test_refusal_names_the_field_and_ends_with_2(args: list[str], field: str | None, reason: str) -> None:
    found = refusal(*args)
    assert found["field"] == field
    assert reason in found["error"]
    in_words = next_(*args)
    assert (in_words.exit_code, in_words.stdout) == (2, "")
    assert reason in in_words.stderr


# -- a batch


def test_batch_answers_line_by_line_and_goes_on_after_a_bad_one() -> None:
    lines = [
        b'{"expr": "0 9 * * *", "zone": "Europe/Paris", "from": "2024-03-30T12:00:00Z", "count": 2, "jobId": null}',
        b'{"expr": "0 9 * *"}',
        b"{",
        b"",
        b"[]",
        b'{"zone": "UTC"}',
        b'{"expr": "@daily", "zone": "Nowhere"}',
        b'{"expr": "@daily", "from": "2024-03-30T12:00:00"}',
        b'{"expr": "@daily", "count": 0}',
        b'{"expr": "@daily", "form": "2024-03-30T12:00:00Z"}',
        b'{"expr": {"everySeconds": 0}}',
        b'{"expr": {"cron": "@daily"}, "zone": "UTC"}',
        b'{"expr": "\xff"}',
        b"[" * 100_000,
        b'{"expr": {"everySeconds": 60}, "from": "2024-03-30T12:00:00.5Z", "count": 1}',
        b'{"expr": "0 0 29 2 *", "from": "2495-01-01T00:00:00Z"}',
    ]
    result = next_("--batch", stdin=b"\n".join(lines))
    assert (result.exit_code, result.stderr) == (0, "")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert answers[0] == {"fires": ["2024-03-31T07:00:00Z", "2024-04-01T07:00:00Z"]}
    refused = answers[1:-2]
    assert all(set(answer) == {"error", "field"} for answer in refused)
    assert [answer["field"] for answer in refused] == [
        *["expr", None, None, None, "expr", "zone", "from", "count", "form"],
        *["expr.everySeconds", "zone", None, None],
    ]
    assert answers[-2:] == [{"fires": ["2024-03-30T12:01:00.500000Z"]}, {"fires": ["2496-02-29T00:00:00Z"]}]


def test_batch_takes_no_other_questions() -> None:
    result = next_("@daily", "--batch")
    assert (result.exit_code, result.stdout) == (2, "")


def test_batch_answers_before_the_next_line_is_written() -> None:
    with subprocess.Popen([*FENCEPOST, "next", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for day in range(1, 4):
            asked = {"expr": "@daily", "from": f"2024-03-0{day}T12:00:00Z", "count": 1}
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"fires": [f"2024-03-0{day + 1}T00:00:00Z"]}
        process.stdin.close()
        assert process.wait() == 0


def plain_cases() -> list[dict[str, Any]]:
    """Those that ask for next fires or for a refusal, and say their expression outright."""
    return [
        case
        for case in CASES
        if case["area"] in ("cron-dst", "cron-syntax")
        and case["input"].get("direction", "next") == "next"
        and "repeated" not in case["input"]["expr"]
    ]


def test_batch_has_the_expected_answer_to_every_case() -> None:
    cases = plain_cases()
    assert len(cases) == 118
    asked = [
        {
            "expr": given["expr"],
            "zone": given["zone"],
            "from": given.get("start"),
            "count": given.get("count"),
            "jobId": given.get("job_id"),
        }
        for given in (case["input"] for case in cases)
    ]
    for case, answer in zip(cases, batch(asked), strict=True):
        if "fires_utc" in case["expected"]:
            assert answer == {"fires": case["expected"]["fires_utc"]}, case["id"]
        else:
            assert answer["field"] == "expr", case["id"]
            names = case["expected"]["error_names"].split(" / ")
            assert any(name.casefold() in answer["error"].casefold() for name in names), case["id"]


def test_batch_says_what_the_server_would_do_with_the_whole_corpus() -> None:
    start = datetime(2024, 3, 9, 12, tzinfo=UTC)
    lines = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    asked = [
        {"expr": line["expr"], "zone": line["zone"], "from": instant_text(start), "count": 3, "jobId": JOB_ID}
        for line in lines
    ]
    assert batch(asked) == [server_answer(line["expr"], line["zone"], start) for line in lines]


def server_answer(expr: str, zone: str | None, start: datetime) -> dict[str, Any]:
    try:
        schedule = parse_schedule({"cron": expr, "zone": zone}, job_id=JOB_ID)
    except InvalidSchedule as error:
        return {"error": error.message, "field": "expr" if error.field == "cron" else error.field}
    found: list[str] = []
    cursor: datetime | None = start
    while cursor is not None and len(found) < 3:
        cursor = next_fire(schedule, cursor, job_id=JOB_ID, created_at=start)
        found += [] if cursor is None else [instant_text(cursor)]
    return {"fires": found}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=5,
)
NAMES = ("expr", "zone", "from", "count", "jobId")
KINDS = ("cron", "zone", "everySeconds", "anchor", "runAt", "delaySeconds", "startAt", "endAt", "excludeDates")
LIKELY = st.sampled_from(
    ["@daily", "0 9 * * 1#5", "H H * * *", "Europe/Paris", "2499-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", 3]
)


@given(
    st.binary(max_size=40)
    | st.dictionaries(
        st.sampled_from(NAMES), LIKELY | JSON_VALUES | st.dictionaries(st.sampled_from(KINDS), LIKELY | JSON_VALUES)
    ).map(lambda line: json.dumps(line).encode())
)
def test_every_line_has_an_answer_whatever_it_is(line: bytes) -> None:
    answer = json.loads(answer_line(line))
    assert set(answer) in ({"fires"}, {"error", "field"})


# -- what it costs to start


def test_neither_librdkafka_nor_httpx_is_loaded_for_it() -> None:
    script = (
        "import sys, fencepost.cli as cli; cli.main(['next', '@daily'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "fencepost.commandline.next_fires" in loaded
    assert {"confluent_kafka", "httpx", "fastavro", "asyncio", "schemas"}.isdisjoint(loaded)
