"""`fencepost webhook`: its process, and what it says of a command line that cannot be right."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec
import pytest
from click.testing import CliRunner

from fencepost.cli import EXIT_USAGE, main
from fencepost.sealing import opened, sealed
from tests.connectors.client.codec_of_tests import codec
from tests.connectors.client.lease_server import LeaseServer
from tests.connectors.client.webhook.receiver import SECRET, Call, fixed, json_answer, receiving

URL = "https://hooks.example.com/mail"


async def test_worker_process_calls_the_url_and_drains_on_sigterm(served: tuple[LeaseServer, str]) -> None:
    """One call is answered after SIGTERM only."""
    server, url = served
    server.add(*range(6))
    may_answer = asyncio.Event()

    async def hold_one(call: Call) -> bytes:
        if call.body == b"3":
            await may_answer.wait()
        return json_answer(call.body.decode())

    async with receiving() as receiver:
        receiver.answering = hold_one
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "fencepost", "webhook", "--queue", "q", "--allow-http"],
            *["--allow-private", "127.0.0.0/8", receiver.url],
            env={
                **os.environ,
                "FENCEPOST_URL": url,
                "FENCEPOST_TOKEN": "fp_1_secret",
                "FENCEPOST_WEBHOOK_SECRET": f"{SECRET} whsec_{'QUJD' * 8}",
            },
            stderr=asyncio.subprocess.PIPE,
        )
        await server.until(lambda: server.states().count("completed") == 5, timeout_s=60)
        assert len(receiver.calls) == 6
        process.send_signal(signal.SIGTERM)
        may_answer.set()
        _, stderr = await process.communicate()
    assert process.returncode == 0
    assert b"6 completed, 0 failed, 0 abandoned" in stderr
    assert {run.result for run in server.runs.values()} == set("012345")
    assert [len(call.headers["webhook-signature"].split()) for call in receiver.calls] == [2] * 6


async def test_a_receiver_gets_payloads_opened_and_its_answer_is_sealed(served: tuple[LeaseServer, str]) -> None:
    """Who has sealed nothing, or with another key, is not passed on."""
    server, url = served
    run, readable = server.add({"to": "ops"}, {"to": "all"})
    server.runs[run].payload = msgspec.to_builtins(sealed({"to": "ops"}, codec))
    async with receiving() as receiver:
        receiver.answering = fixed(json_answer({"sent": True}))
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "fencepost", "webhook", "--queue", "q", "--allow-http"],
            *["--payload-codec", "tests.connectors.client.codec_of_tests:Sealing"],
            *["--allow-private", "127.0.0.0/8", receiver.url],
            env={
                **os.environ,
                "FENCEPOST_URL": url,
                "FENCEPOST_TOKEN": "fp_1_secret",
                "FENCEPOST_WEBHOOK_SECRET": SECRET,
            },
        )
        await server.until(lambda: not {"pending", "leased"} & {*server.states()}, timeout_s=60)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert [call.body for call in receiver.calls] == [b'{"to":"ops"}']
    assert opened(server.runs[run].result, codec) == {"sent": True}
    assert server.runs[readable].state == "dead"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "is not MODULE:ATTRIBUTE"),
        ("no.such.module:codec", "gives no codec: ModuleNotFoundError"),
        ("tests.connectors.client.codec_of_tests:nothing", "gives no codec: AttributeError"),
        ("json:dumps", "gives no codec: TypeError"),
        ("builtins:dict", "is no codec: it needs"),
    ],
)
def test_a_codec_that_is_none_is_a_usage_error(name: str, said: str) -> None:
    result = CliRunner().invoke(main, ["webhook", "--queue", "q", "--payload-codec", name, URL])
    assert (result.exit_code, said in result.stderr) == (EXIT_USAGE, True), result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give either URL or --url-from-payload"),
        ([URL, "--url-from-payload"], "Give either URL or --url-from-payload"),
        (["--url-from-payload"], "give --allow-host"),
        (["http://hooks.example.com/"], "Give https, or --allow-http"),
        (["https://user:pw@hooks.example.com/"], "carries a user or a password"),
        (["https://127.1/"], "odd spelling: write 192.0.2.1"),
        ([URL, "--allow-host", "*"], "'*' is no host name"),
        ([URL, "--allow-host", "*.com"], "*.com allows too much"),
        ([URL, "--allow-private", "10.0.0.1/8"], "a network is written as 10.1.0.0/16"),
        ([URL, "--allow-private", "169.254.169.254/32"], "169.254.169.254/32 is never called: link-local"),
        (
            [URL, "--secret", "hunter2"],
            "secret 1 is not whsec_ and the base64 of 24 to 64 bytes. Set FENCEPOST_WEBHOOK",
        ),
    ],
)
def test_a_command_line_that_cannot_be_right_is_explained(arguments: list[str], said: str) -> None:
    given = ["webhook", "--queue", "q", *arguments]
    secret = {} if "--secret" in arguments else {"FENCEPOST_WEBHOOK_SECRET": SECRET}
    result = CliRunner().invoke(main, given, env=secret, terminal_width=200)
    assert result.exit_code == EXIT_USAGE
    assert said in result.output
    assert "hunter2" not in result.output


def test_without_a_secret_it_says_how_to_make_one() -> None:
    result = CliRunner().invoke(main, ["webhook", "--queue", "q", URL], env={"FENCEPOST_WEBHOOK_SECRET": ""})
    assert result.exit_code == EXIT_USAGE
    assert "whsec_$(openssl rand -base64 32)" in result.output
