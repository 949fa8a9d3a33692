"""`fencepost forecast` of the live set, from the real API; and what a file would add to it."""

from __future__ import annotations

import json
from typing import Any

from fencepost.client import FencepostClient
from fencepost.job_spec import JobSpec, cron, every
from tests.connectors.client.declarations.conftest import Shell
from tests.connectors.client.declarations.declared import job

AHEAD = ("--horizon", "2d", "--json")


async def told(shell: Shell, *options: str) -> dict[str, Any]:
    result = await shell("forecast", *AHEAD, *options)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


async def test_the_live_jobs_are_counted_whoever_created_them(client: FencepostClient, shell: Shell) -> None:
    for queue in ("mail", "mail", "sms"):
        await client.create_job(JobSpec(queue=queue, schedule=cron("30 4 * * *", "Europe/Berlin")))
    paused = await client.create_job(JobSpec(queue="mail", schedule=every(60)))
    await client.pause_job(paused.job_id)
    shell.declare(hourly=job("{cron: '15 * * * *'}"))
    await shell.applied(shell.file, "--yes")
    answer = await told(shell)
    assert (answer["jobs"], answer["distinct"], answer["runs"]) == (4, 2, 3 * 2 + 48)
    assert {queue["queue"]: queue["runs"] for queue in answer["queues"]} == {"mail": 2 * 2 + 48, "sms": 2}
    assert answer["worstSeconds"][0]["runs"] == 3


async def test_how_long_runs_take_is_the_option_s_where_nothing_is_known(shell: Shell) -> None:
    shell.declare(hourly=job("{cron: '15 * * * *'}"))
    await shell.applied(shell.file, "--yes")
    result = await shell("forecast", *AHEAD, "--seconds-per-run", "7200")
    assert "how long runs take is not known" in result.stderr
    [queue] = json.loads(result.stdout)["queues"]
    assert (queue["secondsPerRun"], queue["observed"], queue["peakSlots"], queue["meanSlots"]) == (7200, False, 2, 2)


async def test_a_file_that_pushes_seconds_over_the_limit_is_warned_of_before_it_is_applied(shell: Shell) -> None:
    shell.declare(first=job("{cron: '15 * * * *'}"), second=job("{cron: '15 * * * *'}"))
    await shell.applied(shell.file, "--yes")
    shell.declare(
        first=job("{cron: '15 * * * *'}"), second=job("{cron: '15 * * * *'}"), third=job("{cron: '15 4 * * *'}")
    )
    over = (await told(shell, "--with", str(shell.file), "--limit-per-second", "2"))["overLimit"]
    assert (over["seconds"], over["crowded"]) == (2, 2)
    assert all(busy["at"].endswith("T04:15:00Z") and busy["runs"] == 3 for busy in over["firstCrowded"])
    result = await shell("forecast", "--with", str(shell.file), "--limit-per-second", "2", "--fail")
    assert result.exit_code == 4
    assert "7 seconds of them in which the jobs that are added fire" in result.stdout


async def test_many_pages_are_one_forecast(client: FencepostClient, shell: Shell, monkeypatch: Any) -> None:
    monkeypatch.setattr("fencepost.forecast_client.PAGE", 2)
    for _ in range(5):
        await client.create_job(JobSpec(queue="mail", schedule=cron("0 4 * * *")))
    page = await client.live_schedules(limit=2)
    assert (len(page.schedules), page.next is not None) == (2, True)
    assert (await told(shell))["jobs"] == 5


async def test_a_create_that_crowds_a_second_is_warned_and_done_all_the_same(
    client: FencepostClient, shell: Shell
) -> None:
    for _ in range(2):
        await client.create_job(JobSpec(queue="sms", schedule=cron("0 4 * * *")))
    command = ("jobs", "create", "--queue", "mail", "--warn-per-second", "2", "--json", "--cron")
    crowding = await shell(*command, "0 * * * *")
    assert crowding.exit_code == 0, crowding.output
    assert "it fires in 7 second(s) of the next week that have more than 2 runs: 3 at " in crowding.stderr
    assert json.loads(crowding.stdout)["jobId"]
    beside = await shell(*command, "1 * * * *")
    assert (beside.exit_code, beside.stderr) == (0, "")
    assert (await told(shell))["jobs"] == 4
