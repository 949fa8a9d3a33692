"""The options that say where Kafka is, and how to speak to it; the same for every command that does."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from fencepostd.refusals import Command
from streams.kafka_security import KafkaSecurity, Mechanism, Protocol

_SECURITY = "kafka_"
_file = click.Path(exists=True, dir_okay=False, path_type=Path)


def kafka_options(command: Command) -> Command:
    """Give a command `kafka`, host:port of some brokers, and `security`, a KafkaSecurity."""

    @wraps(command)
    def with_security(*args: Any, **options: Any) -> Any:
        asked = {name: options.pop(name) for name in list(options) if name.startswith(_SECURITY)}
        return command(*args, security=_security(**asked), **options)

    for option in reversed(
        (
            click.option(
                "--kafka", required=True, envvar="FENCEPOST_KAFKA", show_envvar=True, help="host:port[,host:port]"
            ),
            _option("security-protocol", click.Choice(get_args(Protocol)), "How to speak to Kafka.", "plaintext"),
            _option("sasl-mechanism", click.Choice(get_args(Mechanism)), "Of sasl_….", "SCRAM-SHA-512"),
            _option("sasl-username", str, "Of sasl_…."),
            _option("sasl-password-file", _file, "What is in it, without the newline at its end, is the password."),
            _option("ca-file", _file, "Certificates to trust, in PEM; the system's without."),
            _option("cert-file", _file, "This process's own certificate, in PEM, if brokers ask for one."),
            _option("key-file", _file, "Its key."),
        )
    ):
        with_security = option(with_security)
    return with_security


def _option(name: str, kind: Any, text: str, default: str | None = None) -> Any:
    variable = f"FENCEPOST_KAFKA_{name.upper().replace('-', '_')}"
    return click.option(
        f"--kafka-{name}", type=kind, default=default, envvar=variable, show_default=default is not None, help=text
    )


def _security(
    kafka_security_protocol: Protocol,
    kafka_sasl_mechanism: Mechanism,
    kafka_sasl_username: str | None,
    kafka_sasl_password_file: Path | None,
    kafka_ca_file: Path | None,
    kafka_cert_file: Path | None,
    kafka_key_file: Path | None,
) -> KafkaSecurity:
    password = None if kafka_sasl_password_file is None else kafka_sasl_password_file.read_text().rstrip("\n")
    try:
        return KafkaSecurity(
            kafka_security_protocol,
            kafka_sasl_mechanism,
            kafka_sasl_username,
            password,
            kafka_ca_file,
            kafka_cert_file,
            kafka_key_file,
        )
    except ValueError as error:
        raise click.UsageError(f"{error}: see --kafka-sasl-username and what is beside it") from error
