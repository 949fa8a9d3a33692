"""`fencepost forecast` of a file, and how long the history says that runs take."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from bench.next_fire import CORPUS
from fencepost.cli import main
from fencepost.commandline.forecast import OBSERVED
from streams.history_queries import HistoryQueries
from streams.history_store import HistoryStore
from streams.history_tables import EventRow
from tests.streams.event_samples import run_row

EXAMPLE = CORPUS.with_name("jobs.yaml")
FROM = ("--from", "2026-10-24T00:00:00Z")


def forecast(*args: str | Path) -> Result:
    words = ["forecast", *map(str, args)]
    return CliRunner().invoke(main, words, env={"FENCEPOST_URL": ""}, catch_exceptions=False)


def told(*args: str | Path) -> dict[str, Any]:
    result = forecast(*args, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Three jobs at the top of the hour, one beside it."""
    file = tmp_path / "schedules.jsonl"
    texts = (
        {"expr": "0 * * * *", "count": 2, "kind": "crontab"},
        {"schedule": {"cron": "0 */6 * * *", "zone": "Europe/Berlin"}, "queue": "sms"},
        {"expr": "30 2 * * *", "zone": "Europe/Berlin", "jobId": str(UUID(int=1))},
    )
    file.write_text("\n".join(map(json.dumps, texts)) + "\n\n")
    return file


def test_a_file_of_lines_is_counted_without_a_server(lines: Path) -> None:
    answer = told(lines, *FROM, "--horizon", "2d")
    assert (answer["jobs"], answer["refused"]) == (4, 0)
    assert answer["runs"] == 2 * 48 + 8 + 2
    assert answer["worstSeconds"][0] == {
        "at": "2026-10-24T04:00:00Z",
        "runs": 3,
        "heaviest": [{"schedule": "0 * * * *  UTC", "jobs": 2}, {"schedule": "0 */6 * * *  Europe/Berlin", "jobs": 1}],
    }
    [night] = answer["clockChanges"]
    assert (night["zone"], night["once"], night["jobs"]) == ("Europe/Berlin", 1, 2)
    assert {queue["queue"]: queue["runs"] for queue in answer["queues"]} == {"default": 98, "sms": 8}


def test_a_file_of_declared_jobs_is_counted_without_a_server() -> None:
    answer = told(EXAMPLE, *FROM, "--horizon", "2d", "--seconds-per-run", "90")
    runs = {queue["queue"]: queue["runs"] for queue in answer["queues"]}
    assert runs["invoices"] == 2
    assert 191 <= runs["sync"] <= 193  # jitter moves some over the edges
    [sync] = [queue for queue in answer["queues"] if queue["queue"] == "sync"]
    assert (sync["secondsPerRun"], sync["observed"], sync["peakSlots"]) == (90, False, 1)


def test_the_text_has_every_part(lines: Path) -> None:
    result = forecast(lines, *FROM, "--horizon", "2d", "--limit-per-second", "2")
    assert result.exit_code == 0
    for part in (
        "106 runs after 2026-10-24T00:00:00Z up to 2026-10-26T00:00:00Z",
        "Worst seconds\n    2026-10-24T04:00:00Z  3 runs  2 × 0 * * * *  UTC, 1 × 0 */6 * * *  Europe/Berlin\n",
        "Worst minutes",
        "Runs by hour of the day, UTC",
        "Sun 2026-10-25 Europe/Berlin: 03:00 becomes 02:00 (2026-10-25T01:00:00Z)\n"
        "        1 run at a time that is read twice: the first is taken\n"
        "        2 jobs by this clock, 1 h later in UTC from then on\n",
        "Slots needed, so that every run starts when it is due",
        "The worst second, were its heaviest schedules spread",
        "8 seconds with more than 2 runs\n    3 at 2026-10-24T04:00:00Z\n",
    ):
        assert part in result.stdout, part


@pytest.mark.parametrize(("limit", "code"), [("2", 4), ("3", 0)])
def test_fail_ends_with_4_only_when_a_second_is_over_the_limit(lines: Path, limit: str, code: int) -> None:
    result = forecast(lines, *FROM, "--limit-per-second", limit, "--fail")
    assert result.exit_code == code
    assert "more than" in result.stdout


def test_lines_that_cannot_be_right_are_told_with_their_number_and_the_others_count(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    wrong = ['{"expr": "0 0 31 2 *"}', "nonsense", '{"expr": "0 0 * * *", "zone": "Mars/Base"}', '{"zone": "UTC"}']
    file.write_text("\n".join([*wrong, '{"expr": "@daily"}']))
    answer = told(file, *FROM)
    assert (answer["jobs"], answer["refused"]) == (1, 4)
    assert [reason.split(":")[0] for reason in answer["reasons"]] == ["line 1", "line 2", "line 3", "line 4"]
    assert "Mars/Base" in answer["reasons"][2]


def test_the_real_schedules_are_counted(tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(CORPUS.read_text(encoding="utf-8").splitlines(keepends=True)[:400]))
    answer = told(few, *FROM, "--horizon", "1d")
    assert answer["jobs"] > 1_000
    assert answer["runs"] == sum(answer["byHour"]) == sum(queue["runs"] for queue in answer["queues"])
    spread = [saving["overHour"]["runs"] for saving in answer["savings"]]
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < answer["worstSeconds"][0]["runs"] / 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--horizon", "8w"), "--horizon"),
        (("--fail",), "--limit-per-second"),
        (("--limit-per-second", "0"), "--limit-per-second"),
        (("--seconds-per-run", "0"), "--seconds-per-run"),
        (("--with", str(EXAMPLE)), "--with"),
        (("--from", "2026-10-24"), "--from"),
    ],
)
def test_options_that_cannot_be_are_named(args: tuple[str, ...], said: str, lines: Path) -> None:
    result = forecast(lines, *args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_a_file_it_needs_a_server() -> None:
    result = forecast()
    assert result.exit_code == 2
    assert "FENCEPOST_URL" in result.stderr


def test_how_long_runs_take_is_asked_of_first_attempts_of_the_last_week(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    store = HistoryStore(tmp_path / "history.duckdb", memory_limit="128MB")
    lives = [(1, "mail", 1, now), (2, "sms", 1, now - timedelta(days=9)), (3, "sms", 2, now)]
    rows: list[EventRow] = []
    for number, queue, attempt, at in lives:
        told = {"queue": queue, "scheduledFor": at, "dueAt": at}
        for version, kind in ((1, "run_scheduled"), (2, "run_leased"), (3, "run_completed")):
            fields = told | {"at": at + timedelta(seconds=version), "attempt": attempt if version > 1 else None}
            rows.append(run_row(UUID(int=number), version, kind, offset=len(rows), **fields))
    store.append(rows, {0: len(rows)})
    assert HistoryQueries(store).query("acme", OBSERVED).rows == [["mail", 1.0]]
    store.close()
