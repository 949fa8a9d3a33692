"""The `fencepost` command against a scripted server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import click
import pytest
from click.testing import CliRunner, Result

from connectors.stack import KafkaBroker
from fencepost.cli import main
from fencepost.ids import idempotent_id
from tests.connectors.client.test_producer import create_topic

JOB_ID, RUN_ID = str(UUID(int=1)), str(UUID(int=2))  # named in test ids: the same in every process


class ScriptedServer:
    """Says `answer` to every request, and keeps what was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, {})
        self.asked: list[tuple[str, str, Any]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                script.asked.append((self.command, self.path, json.loads(body) if body else None))
                status, answer = script.answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            do_GET = do_PUT = do_PATCH = do_DELETE = do_POST

            def log_message(self, *_: Any) -> None:
                """Not on the test's output."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


def fencepost(*args: str, url: str | None = None, stdin: str | None = None) -> Result:
    env = {"FENCEPOST_URL": url, "FENCEPOST_TOKEN": "fp_1_secret"}
    return CliRunner().invoke(main, args, env=env, input=stdin, catch_exceptions=False)


def test_create_sends_the_job_and_prints_its_id(server: ScriptedServer) -> None:
    server.answer = (201, {"jobId": JOB_ID, "nextRunAt": "2026-03-01T08:00:00Z"})
    result = fencepost(
        *["jobs", "create", "--queue", "mail", "--cron", "0 9 * * *", "--zone", "Europe/Berlin"],
        *["--payload", '{"to": "ops"}', "--max-attempts", "3", "--overlap", "skip"],
        url=server.url,
    )
    assert result.exit_code == 0, result.output
    assert JOB_ID in result.stdout
    assert "2026-03-01T08:00:00Z" in result.stdout
    assert server.asked == [
        (
            "POST",
            "/v1/jobs",
            {
                "queue": "mail",
                "schedule": {"cron": "0 9 * * *", "zone": "Europe/Berlin"},
                "payload": {"to": "ops"},
                "maxAttempts": 3,
                "overlap": "skip",
            },
        )
    ]


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        (["jobs", "pause", JOB_ID], ("POST", f"/v1/jobs/{JOB_ID}/pause", None)),
        (["jobs", "resume", JOB_ID], ("POST", f"/v1/jobs/{JOB_ID}/resume", None)),
        (["jobs", "delete", JOB_ID], ("DELETE", f"/v1/jobs/{JOB_ID}", None)),
        (["jobs", "trigger", JOB_ID, "--payload", "[1]"], ("POST", f"/v1/jobs/{JOB_ID}/trigger", {"payload": [1]})),
    ],
)
def test_commands_on_a_job_print_its_new_state(server: ScriptedServer, args: list[str], asked: Any) -> None:
    server.answer = (200, {"jobId": JOB_ID, "state": "paused"})
    result = fencepost(*args, url=server.url)
    assert result.exit_code == 0, result.output
    assert "paused" in result.stdout
    assert server.asked == [asked]


def test_command_that_is_not_applied_yet_says_so(server: ScriptedServer) -> None:
    server.answer = (202, {"jobId": JOB_ID, "commandId": RUN_ID})
    result = fencepost("jobs", "pause", JOB_ID, url=server.url)
    assert result.exit_code == 0
    assert "not applied yet" in result.stderr


def test_show_prints_what_is_set_or_all_of_it_as_json(server: ScriptedServer) -> None:
    server.answer = (200, {"runId": RUN_ID, "state": "dead", "reason": "boom", "attempt": 5})
    result = fencepost("runs", "show", RUN_ID, url=server.url)
    assert result.stdout.splitlines() == [f"runId    {RUN_ID}", "state    dead", "attempt  5", "reason   boom"]
    as_json = json.loads(fencepost("runs", "show", RUN_ID, "--json", url=server.url).stdout)
    assert (as_json["state"], as_json["reason"]) == ("dead", "boom")


def test_no_value_speaks_to_a_terminal_or_looks_like_another_field(server: ScriptedServer) -> None:
    server.answer = (
        200,
        {"runId": RUN_ID, "state": "dead", "reason": "\x1b]0;boom\nstate  completed\u202e", "attempt": 5},
    )
    result = fencepost("runs", "show", RUN_ID, url=server.url)
    assert result.stdout.splitlines()[-2:] == ["reason   \ufffd]0;boom", "         state  completed\ufffd"]
    server.answer = (200, ANSWER | {"rows": [["a\nb\x1b[31m", 1]]})
    assert "a⏎b\ufffd[31m" in fencepost("query", "SELECT 1", url=server.url).stdout


ANSWER = {
    "columns": [{"name": "state", "type": "VARCHAR"}, {"name": "n", "type": "BIGINT"}],
    "rows": [["completed", 1200], ["dead", None], ["a, b", 7]],
    "truncated": False,
}


def test_query_prints_a_table(server: ScriptedServer) -> None:
    server.answer = (200, ANSWER)
    result = fencepost("query", "SELECT 1", "--limit", "5", url=server.url)
    assert result.stdout.splitlines() == [
        "state         n",
        "─────────  ────",
        "completed  1200",
        "dead",
        "a, b          7",
        "(3 rows)",
    ]
    assert server.asked == [("POST", "/v1/query", {"sql": "SELECT 1", "limit": 5})]


def test_query_prints_csv_and_json_lines(server: ScriptedServer) -> None:
    server.answer = (200, ANSWER | {"truncated": True})
    as_csv = fencepost("query", "--csv", "SELECT 1", url=server.url)
    assert as_csv.stdout == 'state,n\ncompleted,1200\ndead,\n"a, b",7\n'
    assert "only the first" in as_csv.stderr
    as_json = fencepost("query", "--json", "SELECT 1", url=server.url)
    assert json.loads(as_json.stdout.splitlines()[1]) == {"state": "dead", "n": None}


def test_query_without_rows_prints_its_columns(server: ScriptedServer) -> None:
    server.answer = (200, ANSWER | {"rows": []})
    assert "(0 rows)" in fencepost("query", "SELECT 1", url=server.url).stdout


def test_refusal_names_the_field_and_exits_with_1(server: ScriptedServer) -> None:
    server.answer = (422, {"status": 422, "detail": "unknown zone", "field": "schedule.zone"})
    result = fencepost("jobs", "create", "--queue", "q", "--cron", "@daily", "--zone", "Mars/Base", url=server.url)
    assert result.exit_code == 1
    assert result.stderr == "fencepost: 422 schedule.zone: unknown zone\n"


def test_unreachable_server_exits_with_3() -> None:
    result = fencepost("jobs", "show", JOB_ID, url="http://127.0.0.1:1")
    assert result.exit_code == 3
    assert "127.0.0.1:1 cannot be reached" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["jobs", "show", "nonsense"], "'nonsense' is no UUID"),
        (["jobs", "create", "--queue", "q"], "exactly one of cron, everySeconds, runAt, delaySeconds"),
        (["jobs", "create", "--queue", "q", "--every", "5", "--in", "5"], "not everySeconds and delaySeconds"),
        (["jobs", "create", "--queue", "q", "--at", "2026-03-01T09:00"], "needs an offset"),
        (["jobs", "create", "--queue", "q", "--at", "tomorrow"], "is no instant"),
        (["jobs", "create", "--queue", "q", "--every", "5", "--payload", "{"], "is no JSON"),
        (["query", "SELECT 1", "--limit", "0"], "--limit"),
        (["work", "--queue", "q", "--", "no-such-program", "x"], "no program on the PATH"),
        (["work", "--queue", "q"], "Missing argument 'COMMAND...'"),
    ],
)
def test_wrong_input_exits_with_2_and_says_what_is_wrong(server: ScriptedServer, args: list[str], said: str) -> None:
    result = fencepost(*args, url=server.url)
    assert result.exit_code == 2
    assert said in result.stderr
    assert server.asked == []


@pytest.mark.parametrize("missing", ["FENCEPOST_URL", "FENCEPOST_TOKEN"])
def test_missing_configuration_is_named(missing: str) -> None:
    env = {"FENCEPOST_URL": "http://127.0.0.1:1", "FENCEPOST_TOKEN": "fp_1_secret"} | {missing: None}
    result = CliRunner().invoke(main, ["jobs", "show", JOB_ID], env=env)
    assert result.exit_code == 2
    assert missing in result.stderr


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", [*all_commands(main)], ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    result = fencepost(*path, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


@pytest.fixture
def prefix(kafka_broker: KafkaBroker) -> str:
    prefix = f"cli-{uuid4().hex[:8]}"
    create_topic(kafka_broker, f"{prefix}.commands")
    return prefix


def test_send_leaves_out_wrong_lines_sends_the_others_and_exits_with_2(
    kafka_broker: KafkaBroker, prefix: str, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(
        '{"queue": "q", "schedule": {"everySeconds": 5}, "idempotencyKey": "a"}\n'
        "\n"
        '{"queue": "q", "schedule": {"everySeconds": 0}}\n'
        "not json\n"
        '{"queue": "q", "schedule": {"everySeconds": 5}, "idempotencyKey": 7}\n'
        '{"queue": "q", "schedule": {"cron": "@daily"}, "payload": [1], "idempotencyKey": "b"}\n'
    )
    args = ["send", "--bootstrap", kafka_broker.bootstrap, "--tenant", "acme", "--topic-prefix", prefix, "--ids"]
    result = fencepost(*args, str(file))
    assert result.exit_code == 2, result.output
    assert result.stdout.split() == [str(idempotent_id("acme", key)) for key in "ab"]
    assert "line 3: schedule.everySeconds" in result.stderr
    assert "line 4: " in result.stderr
    assert "line 5: idempotencyKey: must be text" in result.stderr
    assert "2 sent, 3 left out" in result.stderr


def test_send_reads_standard_input(kafka_broker: KafkaBroker, prefix: str) -> None:
    args = ["send", "--bootstrap", kafka_broker.bootstrap, "--tenant", "acme", "--topic-prefix", prefix, "-"]
    lines = '{"queue": "q", "schedule": {"delaySeconds": 1}}\n' * 1000
    result = fencepost(*args, stdin=lines)
    assert result.exit_code == 0, result.output
    assert "1000 sent, 0 left out" in result.stderr


def test_send_without_a_broker_exits_with_3(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"queue": "q", "schedule": {"everySeconds": 5}}\n')
    result = fencepost("send", "--bootstrap", "127.0.0.1:1", "--tenant", "acme", str(file))
    assert result.exit_code == 3
    assert "Kafka at 127.0.0.1:1" in result.stderr
