"""`fencepost work`: a command for every run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from fencepost.commandline.shell_worker import ShellCommand
from tests.connectors.client.lease_server import LeaseServer
from tests.connectors.client.worker_bench import Bench, eventually


def shell(line: str, *, permanent: int | None = None, kill_after_s: float = 1) -> ShellCommand:
    return ShellCommand(["/bin/sh", "-c", line], {permanent}, kill_after_s)  # type: ignore[arg-type]


async def test_command_gets_the_payload_and_the_run_in_its_environment(bench: Bench, tmp_path: Path) -> None:
    [run_id] = bench.server.add({"to": "ops"})
    out = tmp_path / "out"
    line = (
        f'cat > {out}; echo "$FENCEPOST_RUN_ID $FENCEPOST_ATTEMPT $FENCEPOST_QUEUE $FENCEPOST_SCHEDULED_FOR" >> {out}'
    )
    async with bench.working(shell(line)):
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    assert out.read_text() == f'{{"to":"ops"}}\n{run_id} 1 q 2026-01-01T00:00:00Z\n'


async def test_token_is_not_handed_to_the_command(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_TOKEN", "fp_1_secret")
    bench.server.add(None)
    async with bench.working(shell(f"env > {tmp_path / 'env'}")):
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    assert "FENCEPOST_TOKEN" not in (tmp_path / "env").read_text()


async def test_failed_command_fails_the_attempt_with_the_end_of_its_standard_error(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    [run_id] = bench.server.add(None)
    async with bench.working(shell('echo "disk full" >&2; test "$FENCEPOST_ATTEMPT" = 2 || exit 3')):
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    assert bench.server.runs[run_id].errors == ["exit code 3: disk full"]
    assert "disk full" in capfd.readouterr().err


async def test_permanent_exit_code_buries_the_run(bench: Bench) -> None:
    [run_id] = bench.server.add(None)
    async with bench.working(shell("exit 64", permanent=64)):
        await bench.server.until(lambda: bench.server.states() == ["dead"])
    assert bench.server.runs[run_id].errors == ["exit code 64"]


async def test_command_that_ignores_its_payload_does_not_fail_for_it(bench: Bench) -> None:
    bench.server.add("x" * 60_000)
    async with bench.working(shell("exec true")):
        await bench.server.until(lambda: bench.server.states() == ["completed"])


def living_members(group: int) -> list[int]:
    """The processes of a group that are not dead; where nobody reaps orphans, dead ones stay listed."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@pytest.mark.parametrize("line", ["sleep 60 & wait", "trap '' TERM; sleep 60", "(trap '' TERM; sleep 60) & wait"])
async def test_stopped_command_is_ended_with_its_children(bench: Bench, tmp_path: Path, line: str) -> None:
    bench.server.add(None)
    pid_file = tmp_path / "pid"
    async with bench.working(shell(f"echo $$ > {pid_file}; {line}", kill_after_s=0.2)) as worker:
        await eventually(lambda: pid_file.exists() and pid_file.read_text())
        await worker.drain(deadline_s=0)
    await eventually(lambda: living_members(int(pid_file.read_text())) == [])


async def test_worker_process_executes_runs_and_drains_on_sigterm(
    served: tuple[LeaseServer, str], tmp_path: Path
) -> None:
    server, url = served
    server.add(*range(6))
    process = await asyncio.create_subprocess_exec(
        *[
            sys.executable,
            "-m",
            "fencepost",
            "work",
            "--queue",
            "q",
            "--slots",
            "2",
            "--",
            f"cat >> {tmp_path / 'out'}",
        ],
        env={**os.environ, "FENCEPOST_URL": url, "FENCEPOST_TOKEN": "fp_1_secret"},
        stderr=asyncio.subprocess.PIPE,
    )
    await server.until(lambda: server.states() == ["completed"] * 6)
    process.send_signal(signal.SIGTERM)
    _, stderr = await process.communicate()
    assert process.returncode == 0
    assert b"6 completed, 0 failed, 0 abandoned" in stderr
    assert sorted((tmp_path / "out").read_text().split()) == [str(number) for number in range(6)]
