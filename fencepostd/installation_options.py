"""The options that say where an installation's Kafka and Postgres are."""

from __future__ import annotations

import click

from fencepostd.kafka_options import kafka_options
from fencepostd.refusals import Command

prefix_option = click.option("--topic-prefix", default="fencepost", envvar="FENCEPOST_TOPIC_PREFIX", show_default=True)


def installation(command: Command) -> Command:
    """Gives a command all of them."""
    for option in (
        prefix_option,
        kafka_options,
        click.option("--postgres", required=True, envvar="FENCEPOST_POSTGRES", show_envvar=True, help="A DSN."),
    ):
        command = option(command)
    return command
