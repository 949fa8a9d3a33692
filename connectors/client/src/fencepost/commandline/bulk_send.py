"""`fencepost send …`: job specs by Kafka."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import click
import msgspec

from fencepost.errors import InvalidInput
from fencepost.job_spec import JobSpec, parse_spec
from fencepost.producer import CommandProducer


class SettingParam(click.ParamType):
    name = "key=value"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, equals, setting = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is no KEY=VALUE", param, ctx)
        return key, setting


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--bootstrap", envvar="FENCEPOST_KAFKA", show_envvar=True, required=True, help="The broker, host:port.")
@click.option("--tenant", envvar="FENCEPOST_TENANT", show_envvar=True, required=True, help="Whose jobs they are.")
@click.option("--topic-prefix", default="fencepost", show_default=True)
@click.option(
    "--kafka", "kafka_settings", type=SettingParam(), multiple=True, help="A librdkafka setting, for TLS and SASL."
)
@click.option("--ids", is_flag=True, help="Print the job id of every line that was sent.")
def send(
    file: BinaryIO,
    bootstrap: str,
    tenant: str,
    topic_prefix: str,
    kafka_settings: tuple[tuple[str, str], ...],
    ids: bool,
) -> None:
    """Create the jobs of a JSON-lines FILE (or - for standard input) by Kafka.

    A line is a job as POST /v1/jobs takes it, and may have an idempotencyKey: sending the file again then changes
    nothing. A line that cannot be right is reported and left out, and the exit code is 2; what only the server can
    judge (an unknown zone, for instance) goes to its topic of rejected commands.

    \b
    Examples
      fencepost send --bootstrap 127.0.0.1:9092 --tenant acme jobs.jsonl
      echo '{"queue": "mail", "schedule": {"delaySeconds": 5}, "idempotencyKey": "hello"}' | fencepost send … -
    """
    progress: Any = click.progressbar(length=_size_of(file), label="sending", file=sys.stderr)
    kafka_config = dict(kafka_settings)
    with (
        CommandProducer(bootstrap, tenant=tenant, topic_prefix=topic_prefix, kafka_config=kafka_config) as producer,
        progress,
    ):
        sent, wrong = _send_lines(producer, file, progress.update, ids)
    click.echo(f"{sent} sent, {wrong} left out", err=True)
    if wrong:
        raise click.exceptions.Exit(2)


def _send_lines(
    producer: CommandProducer, lines: Iterable[bytes], progress: Callable[[int], None], ids: bool
) -> tuple[int, int]:
    """How many were sent, and how many could not be right."""
    sent = wrong = 0
    for number, line in enumerate(lines, 1):
        progress(len(line))
        if not line.strip():
            continue
        try:
            spec, key = _parse(line)
            job_id = producer.create_job(spec, idempotency_key=key)
        except InvalidInput as error:
            wrong += 1
            click.echo(f"line {number}: {error}", err=True)
            continue
        sent += 1
        if ids:
            click.echo(job_id)
    return sent, wrong


def _parse(line: bytes) -> tuple[JobSpec, str | None]:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInput(str(error)) from error
    key = fields.pop("idempotencyKey", None)
    if key is not None and not (isinstance(key, str) and key):
        raise InvalidInput("must be text", field="idempotencyKey")
    return parse_spec(fields), key


def _size_of(file: BinaryIO) -> int | None:
    """Bytes, unless it is a pipe."""
    if not file.seekable():
        return None
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size
