"""TLS and SASL towards Kafka: one setting, in the spelling of each of the two libraries that speak to it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import faust

Protocol = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True)
class KafkaSecurity:
    """How this process shows Kafka who it is, and knows that it is Kafka.

    username, password: for SASL. ca: the certificates to trust, in PEM; None: the system's. cert, key: of this process,
    in PEM, for brokers that ask for one; both or neither. Raises ValueError for what cannot be.
    """

    protocol: Protocol = "plaintext"
    mechanism: Mechanism = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if self._is_sasl and not (self.username and self.password):
            raise ValueError(f"{self.protocol} takes a username and a password")
        if (self.cert is None) != (self.key is None):
            raise ValueError("a certificate takes its key, and a key its certificate")

    @property
    def _is_sasl(self) -> bool:
        return self.protocol.startswith("sasl")

    @property
    def _is_tls(self) -> bool:
        return self.protocol.endswith("ssl")

    def librdkafka(self) -> Mapping[str, Any]:
        """For clients of confluent-kafka, beside their own settings."""
        config: dict[str, Any] = {"security.protocol": self.protocol}
        if self._is_sasl:
            config |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        if self._is_tls:
            files = {
                "ssl.ca.location": self.ca,
                "ssl.certificate.location": self.cert,
                "ssl.key.location": self.key,
            }
            config |= {name: str(file) for name, file in files.items() if file is not None}
        return config

    def faust(self) -> Mapping[str, Any]:
        """For the app of the owners, whose consumer is aiokafka's. Raises OSError for files that it cannot read."""
        context = self._context() if self._is_tls else None
        if self._is_sasl:
            credentials = faust.SASLCredentials(
                username=self.username, password=self.password, mechanism=self.mechanism, ssl_context=context
            )
        elif context is not None:
            credentials = faust.SSLCredentials(context)
        else:
            return {}
        return {"broker_credentials": credentials}

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context


PLAINTEXT = KafkaSecurity()
