"""The stack brings its parts up and down, from any process, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from connectors.stack import KafkaBroker, LocalStack, PartFailed, PartStatus, RoleSpec, StackBusy, StackError
from connectors.stack.processes import Process, wait_until
from connectors.stack.register import PartRecord, Register, locked

# Answers 200 on every path; says where its servers are.
WEB_ROLE = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(os.environ.get("ANSWER", "200")))
        self.end_headers()
        self.wfile.write(os.environ["SERVERS"].encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
DYING_ROLE = "import sys; print('cannot find the ledger'); sys.exit(3)"

Make = Callable[..., LocalStack]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, kafka_broker: KafkaBroker, postgres_server: str, said: list[str]) -> Iterator[Make]:
    """Makes stacks of one state folder, on the servers of the session; takes down what a test leaves."""

    def make(*roles: RoleSpec, **more: object) -> LocalStack:
        servers = {"kafka": kafka_broker.bootstrap, "postgres": postgres_server}
        return LocalStack(tmp_path, roles=roles, say=said.append, **{**servers, **more})  # type: ignore[arg-type]

    yield make
    make().down()


def web_role(stack: LocalStack, name: str, **env: str) -> RoleSpec:
    port = stack.port_for(name)
    return RoleSpec(
        name,
        argv=[sys.executable, "-c", WEB_ROLE, str(port)],
        env=lambda bootstrap, dsn: {"SERVERS": f"{bootstrap} {dsn}", **env},
        health_url=f"http://127.0.0.1:{port}/",
        port=port,
    )


def sleeping_role(name: str) -> RoleSpec:
    return RoleSpec(name, argv=["sleep", "600"], settle_s=0.1)


def part(statuses: list[PartStatus], name: str) -> PartStatus:
    return next(status for status in statuses if status.name == name)


def still_running(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = psutil.process_iter(["cmdline"])
    return [line for process in found if str(folder) in (line := " ".join(process.info["cmdline"] or []))]


def test_roles_get_the_addresses_and_are_ready_when_up_returns(make: Make, kafka_broker: KafkaBroker) -> None:
    stack = make()
    stack = make(web_role(stack, "api"))
    stack.up()
    api = part(stack.status(), "api")
    assert (api.health, api.detail) == ("ok", f"{kafka_broker.bootstrap} {stack.dsn}")
    assert api.pid is not None
    assert api.since is not None


def test_init_runs_before_the_roles(make: Make) -> None:
    order: list[str] = []

    def command(*_: str) -> list[str]:
        order.append("role")
        return ["sleep", "600"]

    stack = make(RoleSpec("owner", argv=command, settle_s=0), init=lambda *_: order.append("init"))
    stack.up()
    assert order == ["init", "role"]


def test_status_and_down_work_from_another_process(make: Make, tmp_path: Path) -> None:
    stack = make(web_role(make(), "api"), sleeping_role("owner"))
    stack.up()
    processes = [Register(tmp_path).running(name) for name in ("api", "owner")]
    script = (
        "import sys; from pathlib import Path; from connectors.stack import LocalStack\n"
        "stack = LocalStack(Path(sys.argv[1]))\n"
        "for part in stack.status(): print(part.name, part.health)\n"
        "stack.down()"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:4] == ["postgres ok", "kafka ok", "api ok", "owner ok"]
    assert not any(process is None or process.alive() for process in processes)


def test_down_leaves_servers_of_somebody_else_running(make: Make) -> None:
    stack = make()
    stack.up()
    stack.down()
    assert [(status.name, status.health) for status in stack.status()] == [("postgres", "ok"), ("kafka", "ok")]


def test_down_does_not_kill_a_process_that_got_the_pid_of_a_part(make: Make, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        try:
            started_at = Process.of(stranger.pid).started_at
            Register(tmp_path).put("api", PartRecord(stranger.pid, started_at - 60))
            stack = make()
            assert part(stack.status(), "api").health == "dead"
            stack.down()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_role_that_dies_at_start_shows_its_log_and_takes_the_others_down(make: Make, tmp_path: Path) -> None:
    dying = RoleSpec("relay", argv=[sys.executable, "-c", DYING_ROLE], settle_s=20)
    stack = make(sleeping_role("owner"), dying)
    with pytest.raises(PartFailed, match="cannot find the ledger") as failed:
        stack.up()
    assert failed.value.name == "relay"
    assert Register(tmp_path).running("owner") is None


def test_a_role_that_never_gets_healthy_fails_with_what_it_answered(make: Make) -> None:
    sick = replace(web_role(make(), "api", ANSWER="503"), ready_deadline_s=1)
    with pytest.raises(PartFailed, match="not ready after 1 s: 127"):
        make(sick).up()


def test_a_failed_up_leaves_running_what_ran_before(make: Make, tmp_path: Path) -> None:
    make(sleeping_role("owner")).up()
    with pytest.raises(PartFailed):
        make(sleeping_role("owner"), RoleSpec("relay", argv=["no-such-program"])).up()
    assert Register(tmp_path).running("owner") is not None


def test_an_init_that_fails_stops_the_start(make: Make, tmp_path: Path) -> None:
    def init(*_: str) -> None:
        raise StackError("the ledger has another number of partitions")

    with pytest.raises(StackError, match="another number"):
        make(sleeping_role("owner"), init=init).up()
    assert Register(tmp_path).running("owner") is None


def test_up_again_starts_only_what_is_missing(make: Make, tmp_path: Path) -> None:
    stack = make(sleeping_role("owner"), sleeping_role("relay"))
    stack.up()
    owner = Register(tmp_path).running("owner")
    stack.kill_part("relay")
    assert part(stack.status(), "relay").health == "dead"
    stack.up()
    assert Register(tmp_path).running("owner") == owner
    assert part(stack.status(), "relay").health == "ok"


def test_a_frozen_part_is_shown_as_such_until_it_is_thawed(make: Make, tmp_path: Path) -> None:
    stack = make(sleeping_role("owner"))
    stack.up()
    owner = Register(tmp_path).running("owner")
    assert owner is not None
    stack.signal_part("owner", signal.SIGSTOP)
    assert wait_until(owner.frozen, 20)
    assert part(stack.status(), "owner").health == "frozen"
    stack.signal_part("owner", signal.SIGCONT)
    assert wait_until(lambda: not owner.frozen(), 20)
    assert part(stack.status(), "owner").health == "ok"


def test_a_part_can_be_killed_and_started_alone(make: Make) -> None:
    stack = make(web_role(make(), "api"))
    stack.up()
    before = part(stack.status(), "api").pid
    stack.kill_part("api")
    stack.start_part("api")
    after = part(stack.status(), "api")
    assert after.health == "ok"
    assert after.pid != before


def test_a_part_that_nobody_knows_is_named_with_those_there_are(make: Make) -> None:
    stack = make(sleeping_role("owner"))
    for call in (stack.kill_part, stack.start_part, stack.logs):
        with pytest.raises(StackError, match="postgres, kafka, owner"):
            call("onwer")
    with pytest.raises(StackError, match="owner is not running"):
        stack.signal_part("owner", signal.SIGTERM)


def test_two_commands_do_not_work_on_one_folder_at_the_same_time(make: Make, tmp_path: Path) -> None:
    with locked(tmp_path / "stack.lock"), pytest.raises(StackBusy):
        make().up()


def test_logs_are_those_of_the_part(make: Make) -> None:
    stack = make(RoleSpec("owner", argv=["sh", "-c", "echo took over partition 3; exec sleep 600"], settle_s=0.1))
    stack.up()
    lines = stack.logs("owner", follow=True)
    assert next(lines) == "took over partition 3"
    lines.close()


def test_an_address_that_does_not_answer_is_refused(make: Make) -> None:
    nobody = f"postgresql://postgres@127.0.0.1:{make().port_for('nobody')}/fencepost"
    with pytest.raises(StackError, match="postgres given does not answer"):
        make(postgres=nobody).up()


def test_own_servers_come_up_hold_their_data_and_leave_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    stack = LocalStack(tmp_path, roles=[sleeping_role("owner")], say=said.append)
    try:
        stack.up()
        assert [status.health for status in stack.status()] == ["ok", "ok", "ok"]
        addresses = stack.bootstrap, stack.dsn
        with psycopg.connect(stack.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept ()")
        stack.down()
        assert still_running(tmp_path) == []
        assert {status.health for status in stack.status()} == {"down"}
        stack.up()
        assert (stack.bootstrap, stack.dsn) == addresses
        with psycopg.connect(stack.dsn) as connection:
            connection.execute("SELECT FROM kept")
    finally:
        stack.down()
    assert still_running(tmp_path) == []
    assert any(line.startswith("kafka: ready in") for line in said)


def test_each_shard_is_a_server_of_its_own_that_the_next_start_finds_again(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    def stack(shards: int | None = None) -> LocalStack:
        return LocalStack(tmp_path, kafka=kafka_broker.bootstrap, shards=shards, say=lambda _: None)

    try:
        stack(2).up()
        dsns = stack().dsns
        assert len(set(dsns)) == 2
        names = ["postgres", "postgres-1", "kafka"]
        assert [(status.name, status.health) for status in stack().status()] == [(name, "ok") for name in names]
        with psycopg.connect(dsns[1]) as conn:
            conn.execute("CREATE TABLE kept ()")
        stack().down()
        assert [status.health for status in stack().status()] == ["down", "down", "ok"]
        stack().up()
        assert stack().dsns == dsns
        with psycopg.connect(dsns[1]) as conn:
            conn.execute("SELECT FROM kept")
        with pytest.raises(StackError, match="2 shards, not 3"):
            stack(3).up()
    finally:
        stack().down()


def test_shards_are_not_started_beside_a_postgres_that_was_given(tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    stack = LocalStack(tmp_path, kafka=kafka_broker.bootstrap, postgres="dbname=mine", shards=2, say=lambda _: None)
    with pytest.raises(StackError, match="fencepostd init"):
        stack.up()
