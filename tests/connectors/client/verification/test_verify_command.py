"""`fencepost verify` on a real history: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result

from fencepost.verification.events import Event, RunEvent
from streams.history_store import HistoryStore
from tests.connectors.client.test_cli import fencepost
from tests.connectors.client.verification.history_server import HistoryServer
from tests.connectors.client.verification.told import NOON, created, ended, leased, made

RANGE = ["--from", "2026-03-01T12:00:00Z", "--to", "2026-03-01T12:02:30Z"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HistoryServer]:
    store = HistoryStore(tmp_path / "history.duckdb")
    server = HistoryServer(store)
    yield server
    server.close()
    store.close()


def a_sound_job() -> list[Event]:
    """It fires every minute from 12:01 on; the first two of its runs are completed, the third waits for 12:03."""
    events: list[Event] = [created(), made(60, seconds=0)]
    for minute in (1, 2):
        run, seconds = made(60 * minute), 60 * minute
        events += [
            leased(2, seconds + 1, 1, run_id=run.run_id, due_at=run.due_at),
            made(seconds + 60),
            ended(3, "run_completed", seconds + 2, 1, run_id=run.run_id),
        ]
    return events


def without_an_occurrence() -> list[Event]:
    return [each for each in a_sound_job() if not (isinstance(each, RunEvent) and each.run_id == made(120).run_id)]


def verify(server: HistoryServer, *options: str) -> Result:
    return fencepost("verify", *options, url=server.url)


def test_a_sound_range_gets_its_certificate(server: HistoryServer) -> None:
    server.tell(a_sound_job())
    result = verify(server, *RANGE)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == (
        f"certificate of acme, 2026-03-01T12:00:00Z to 2026-03-01T12:02:30Z, by the history of {server.url}"
    )
    assert lines[1] == "holds: nothing breaks a rule"
    assert "8 events: 3 runs in 2 attempts; 2 completed, 0 dead, 0 cancelled" in lines
    assert (
        "           3       0  Every occurrence has exactly one decision, a run or a skip with its reason, and none"
        in (result.stdout)
    )
    assert "  epochs: neither the history nor the topic holds them" in lines
    assert "  1 × how runs end: they were not over at the end of the range" in lines


def test_a_broken_promise_is_told_with_the_run_s_events(server: HistoryServer) -> None:
    first = made(60).run_id
    twice = ended(4, "run_completed", 63, 1, run_id=first)
    server.tell([*a_sound_job(), twice])
    result = verify(server, *RANGE)
    assert result.exit_code == 1
    assert "VIOLATED: 2 times" in result.stdout
    assert "broken: completed_at_most_once" in result.stdout
    assert f"  {first}: completed more than once" in result.stdout
    trace = [line.split()[1:3] for line in result.stdout.splitlines() if line.startswith("  2026-03-01T12:0")]
    assert trace[:4] == [["1", "scheduled"], ["2", "leased"], ["3", "completed"], ["4", "completed"]]

    told = json.loads(verify(server, *RANGE, "--json").stdout)
    assert (told["verdict"], told["counts"]["completed"]) == ("violated", 3)
    [completed] = [each for each in told["violations"] if each["rule"] == "completed_at_most_once"]
    assert [line["event"] for line in completed["trace"]] == ["scheduled", "leased", "completed", "completed"]


def test_a_missing_occurrence_is_told_of_its_job(server: HistoryServer) -> None:
    server.tell(without_an_occurrence())
    result = verify(server, *RANGE)
    assert result.exit_code == 1
    assert "1 occurrences from 2026-03-01T12:02:00Z on have no decision" in result.stdout


def test_runs_from_before_the_range_are_judged_by_their_past(server: HistoryServer) -> None:
    server.tell(a_sound_job())
    begin = ["--from", "2026-03-01T12:02:01Z", "--to", "2026-03-01T12:02:30Z", "--json"]
    told = json.loads(verify(server, *begin).stdout)
    assert (told["verdict"], told["counts"]["events"], told["counts"]["runs"]) == ("holds", 2, 1)
    assert not [each for each in told["unchecked"] if each["what"] == "what runs did before"]


def test_what_is_overdue_is_asked_about_and_lost_when_nobody_knows_it(server: HistoryServer) -> None:
    server.tell(a_sound_job())
    later = ["--from", "2026-03-01T12:00:00Z", "--to", "2026-03-01T12:04:30Z", "--lost-after", "1m"]
    waits = made(180).run_id
    server.runs[waits] = "pending"
    result = verify(server, *later)
    assert "the run waits in its queue" in result.stdout
    assert "nothing was decided since" in result.stdout  # and the ledger knows nothing of the job

    server.runs[waits] = "unknown"
    result = verify(server, *later)
    assert result.exit_code == 1
    assert (
        f"  {waits}: due since 2026-03-01T12:03:00Z, and nobody has leased it; the ledger does not know"
        in result.stdout
    )


def test_a_history_that_is_behind_gives_no_certificate(server: HistoryServer) -> None:
    server.tell(a_sound_job())
    server.behind = "at most 5000 records of a partition are not read yet"
    result = verify(server, *RANGE)
    assert result.exit_code == 2
    assert "NOT JUDGED" in result.stdout
    assert "the history is behind: outbox: at most 5000 records" in result.stdout


def test_where_nothing_happened_there_is_nothing_to_judge(server: HistoryServer) -> None:
    assert verify(server, *RANGE).exit_code == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--from", "2026-03-01T12:00:00Z", "--last", "1h"], "both say where the range begins"),
        (["--follow", "--to", "2026-03-01T12:00:00Z"], "--follow has no end"),
        (["--tenant", "acme"], "--tenant goes with --bootstrap"),
        (["--last", "soon"], "is no time such as"),
        (["--from", "2026-03-01T12:00:00Z", "--to", "2026-03-01T12:00:00Z"], "must be before the end"),
    ],
)
def test_a_range_that_cannot_be_meant_is_refused(options: Sequence[str], complaint: str) -> None:
    result = fencepost("verify", *options, url="http://127.0.0.1:9")
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_a_server_that_is_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fencepost.http_calls.wait_before_retry_s", lambda *_: 3600.0
    )  # or it would be asked on for 15 s
    result = fencepost("verify", url="http://127.0.0.1:9")
    assert result.exit_code == 3


def test_a_token_that_may_not_ask_is_no_broken_promise(server: HistoryServer) -> None:
    server.refused = "the role worker may not do this"
    result = verify(server, *RANGE)
    assert result.exit_code == 2
    assert "the role worker may not do this" in result.stderr


async def test_following_tells_at_once_what_comes_and_ends_with_a_certificate(server: HistoryServer) -> None:
    now = datetime.now(UTC)

    def recent(event: Event) -> Event:
        shift = now - NOON - timedelta(minutes=3)
        moved = {"at": event.at + shift}
        if isinstance(event, RunEvent):
            moved |= {name: value + shift for name in ("due_at", "expires_at") if (value := getattr(event, name))}
        return replace(event, **moved)  # type: ignore[arg-type]

    run = [recent(each) for each in a_sound_job() if isinstance(each, RunEvent)]
    run = [replace(each, scheduled_for=None) for each in run if isinstance(each, RunEvent)]
    server.tell(run[:2])
    command = [sys.executable, "-m", "fencepost", "--url", server.url, "--token", "fp_1_secret", "verify", "--follow"]
    follower = await asyncio.create_subprocess_exec(*command, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follower.stdout is not None
    assert follower.stderr is not None
    started = await follower.stderr.readuntil(b"following")
    assert b"2 events verified" in started
    server.tell([*run[2:4], replace(run[3], version=4)])
    async with asyncio.timeout(60):
        found = json.loads(await follower.stdout.readline())
    assert found["rule"] in ("completed_at_most_once", "lives_are_legal")
    follower.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        last = (await follower.communicate())[0].splitlines()[-1]
    made_of = json.loads(last)
    assert (made_of["verdict"], made_of["counts"]["completed"], follower.returncode) == ("violated", 2, 1)
