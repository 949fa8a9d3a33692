"""The server's command line, run as people run it, on servers that are there already."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from click.testing import CliRunner, Result

from connectors.stack import KafkaBroker
from fencepostd.cli import main
from ledger.connection import ledger_pool, session
from ledger.tokens import find_token


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def wait_until_all_is_owned(state: list[str]) -> None:
    """As `status` tells it; the owners may still be sharing the partitions out."""
    give_up_at = time.monotonic() + 60
    while True:
        shown = run("status", *state).output
        if sum(int(count) for count in re.findall(r"streams-\d owns (\d+)", shown)) == 16:
            return
        assert time.monotonic() < give_up_at, shown


@pytest.fixture
def stack(tmp_path: Path, kafka_broker: KafkaBroker, empty_ledger_dsn: str) -> Iterator[list[str]]:
    """The options that name a state folder and the servers to use; whatever was started is taken down."""
    state = ["--state", str(tmp_path / "state")]
    yield [*state, "--kafka", kafka_broker.bootstrap, "--postgres", empty_ledger_dsn]
    run("down", *state)


@pytest.mark.apache_kafka(reason="the group's coordinator hands partitions over within seconds only there")
def test_up_status_logs_down_and_up_again(stack: list[str]) -> None:
    state = stack[:2]
    up = run("up", *stack)
    assert up.exit_code == 0, up.output
    url, token = re.findall(r"FENCEPOST_(?:URL|TOKEN)=(\S+)", up.output)
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
        created = client.post("/v1/jobs", json={"queue": "mail", "schedule": {"cron": "0 9 * * *"}})
        assert created.status_code == 201, created.text
        assert client.get("/v1/runs/none").status_code == 404
        # What failed is in the access log, unless it is told to have all.
        lines = [json.loads(line) for line in run("logs", *state, "api").output.splitlines() if line.startswith("{")]
        assert [(line["route"], line["status"]) for line in lines] == [("/v1/runs/{id}", 404)]

        status = run("status", *state)
        assert status.exit_code == 0, status.output
        for part in ("postgres", "kafka", "history", "relay", "streams-0", "streams-1", "api"):
            assert re.search(rf"^{part} +ok ", status.output, re.MULTILINE), status.output
        wait_until_all_is_owned(state)
        logs = [run("logs", *state, owner).output for owner in ("streams-0", "streams-1")]
        assert any("owned under epoch" in log for log in logs)  # whoever joined first may have them all yet

        assert run("down", *state).exit_code == 0
        down = run("status", *state)
        assert down.exit_code == 1
        assert re.search(r"^streams-0 +down ", down.output, re.MULTILINE), down.output

    assert run("up", *stack).exit_code == 0
    job = httpx.get(url + created.headers["Location"], headers={"Authorization": f"Bearer {token}"})
    assert job.json().get("schedule") == {"cron": "0 9 * * *", "zone": "UTC"}, job.text


def test_jobs_are_kept_for_longer_than_outcomes_of_commands_are() -> None:
    refused = run("run", "relay", "--kafka", "k:1", "--postgres", "host=p", "--keep-jobs-days", "1")
    assert refused.exit_code == 2
    assert "--keep-jobs-days" in refused.output
    assert "x>=2" in refused.output


def test_an_api_that_would_shed_leases_before_reads_is_refused() -> None:
    ends = ("--kafka", "k:1", "--postgres", "host=p", "--history-url", "http://h:1")
    refused = run("run", "api", *ends, "--shed-leases-at", "100")
    assert refused.exit_code == 2
    assert "leases last" in refused.output


def test_logs_of_what_was_never_started_names_what_there_is(tmp_path: Path) -> None:
    result = run("logs", "--state", str(tmp_path), "api")
    assert result.exit_code == 1
    assert "api has no log" in result.output


def test_init_twice_is_harmless_and_another_number_of_partitions_is_refused(
    kafka_broker: KafkaBroker, empty_ledger_dsn: str, tmp_path: Path
) -> None:
    options = ["--kafka", kafka_broker.bootstrap, "--postgres", empty_ledger_dsn, "--topic-prefix", tmp_path.name]
    for _ in range(2):
        assert run("init", *options, "--partitions", "4").exit_code == 0
    refused = run("init", *options, "--partitions", "5")
    assert refused.exit_code == 1
    assert "4 partitions, not 5" in refused.output


def test_init_spreads_partitions_over_shards_that_a_later_init_knows(
    kafka_broker: KafkaBroker, postgres_server: str, empty_ledger_dsn: str, another_ledger_dsn: str, tmp_path: Path
) -> None:
    options = ["--kafka", kafka_broker.bootstrap, "--postgres", empty_ledger_dsn, "--topic-prefix", tmp_path.name]
    options += ["--partitions", "4"]
    for shards in (["--shard", another_ledger_dsn], ["--shard", another_ledger_dsn], []):
        done = run("init", *options, *shards)
        assert done.exit_code == 0, done.output
    assert [held_by(dsn) for dsn in (empty_ledger_dsn, another_ledger_dsn)] == [[0, 2], [1, 3]]

    refused = run("init", *options, "--shard", another_ledger_dsn, "--shard", postgres_server)
    assert (refused.exit_code, "there are 2, not 3" in refused.output) == (1, True)
    refused = run("init", *options, "--shard", postgres_server)
    assert (refused.exit_code, "is no shard" in refused.output) == (1, True)
    refused = run("token", "create", "--postgres", another_ledger_dsn, "--tenant", "acme", "--role", "worker")
    assert (refused.exit_code, "is shard 1, not 0" in refused.output) == (1, True)


def held_by(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as conn:
        return [row[0] for row in conn.execute("SELECT partition FROM partitions ORDER BY partition")]


def test_token_is_shown_once_and_ends_when_it_is_revoked(ledger_dsn: str) -> None:
    created = run(
        "token", "create", "--postgres", ledger_dsn, "--tenant", "acme", "--role", "worker", "--queue", "mail"
    )
    token = created.output.strip()
    assert asyncio.run(identity(ledger_dsn, token)) == ("acme", "worker", ["mail"])
    token_id = token.split("_")[1]
    assert run("token", "revoke", "--postgres", ledger_dsn, token_id).output == f"revoked {token_id}\n"
    assert asyncio.run(identity(ledger_dsn, token)) is None
    assert run("token", "revoke", "--postgres", ledger_dsn, token_id).exit_code == 1


async def identity(dsn: str, token: str) -> tuple[str, str, list[str] | None] | None:
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        found = await find_token(conn, token)
    return found and found.identity[1:]


def test_a_token_is_rotated_and_listed_by_its_id_and_no_list_shows_a_secret(ledger_dsn: str) -> None:
    ledger = ("--postgres", ledger_dsn)
    old = run("token", "create", *ledger, "--tenant", "acme", "--role", "worker", "--expires-in", "90d").output.strip()
    old_id = old.split("_")[1]
    new = run("token", "rotate", *ledger, old_id, "--overlap", "1h").output.strip()
    new_id = new.split("_")[1]
    for token in (old, new):
        assert asyncio.run(identity(ledger_dsn, token)) == ("acme", "worker", None)
    assert run("token", "rotate", *ledger, old_id).exit_code == 1
    listed = run("token", "list", *ledger, "--tenant", "acme").output
    assert re.search(rf"^{old_id} .*Z +never +in force, replaced by {new_id}$", listed, re.MULTILINE), listed
    assert re.search(rf"^{new_id}  acme +worker +all +\S+Z  never +never +in force$", listed, re.MULTILINE), listed
    assert not any(token.split("_", 2)[2] in listed for token in (old, new))


@pytest.mark.parametrize("time_text", ["90", "1.5h", "1w", "-1h", "1000000000d"])
def test_a_time_without_a_unit_that_is_known_is_refused(time_text: str) -> None:
    refused = run("token", "rotate", "--postgres", "host=p", "4f2a90c1b7de", f"--overlap={time_text}")
    assert refused.exit_code == 2
    assert "is no time such as" in refused.output


def test_role_refuses_a_ledger_that_was_never_initialised(postgres_server: str, tmp_path: Path) -> None:
    """In a process of its own: a role takes over the signals of its process."""
    command = [sys.executable, "-m", "fencepostd", "run", "streams", "--name", "streams-x", "--state", str(tmp_path)]
    servers = ["--port", "0", "--kafka", "127.0.0.1:9", "--postgres", postgres_server]
    refused = subprocess.run([*command, *servers], check=False, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "run `fencepostd init`" in refused.stderr


def test_every_command_explains_itself() -> None:
    for command in ("up", "down", "status", "logs", "init", "run", "token"):
        help_text = run(command, "--help").output
        assert len(help_text.splitlines()) > 5, json.dumps(help_text)
