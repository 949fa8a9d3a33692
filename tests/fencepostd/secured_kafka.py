"""A Kafka that asks who comes: listeners with SASL, with TLS, and with both, beside its usual one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from connectors.stack import KafkaBroker, StackError, default_cache_dir
from connectors.stack.kafka import Flavour
from connectors.stack.ports import free_port
from streams.kafka_security import KafkaSecurity, Protocol

USER, PASSWORD = "fencepost", "a secret: of several words"
TENANT_USER = "acme-app"  # whom ACLs alone let do anything
ALLOW = AclPermissionType.ALLOW
LISTENERS: tuple[Protocol, ...] = ("sasl_plaintext", "sasl_ssl", "ssl")

PROPERTIES = """\
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={cert}
listener.name.ssl.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:fencepost;User:CN=fencepost
"""
JAAS = """\
listener.name.{listener}.plain.sasl.jaas.config={package}.plain.PlainLoginModule required {users};
listener.name.{listener}.scram-sha-512.sasl.jaas.config={package}.scram.ScramLoginModule required;
"""


class SecuredKafka(KafkaBroker):
    """An Apache Kafka. Its certificate is also that of its clients, and the one that both trust."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir, default_cache_dir(), say=print)
        self._folder = state_dir
        self._ports = {each: free_port() for each in LISTENERS}
        self.cert, self.key = state_dir / "cert.pem", state_dir / "key.pem"

    def bootstrap_of(self, protocol: Protocol) -> str:
        return f"127.0.0.1:{self._ports[protocol]}"

    def security(self, protocol: Protocol, *, user: str = USER, password: str = PASSWORD) -> KafkaSecurity:
        """Of a client that is let in, unless it is given another password. TENANT_USER is by sasl_plaintext alone."""
        is_sasl, is_tls = protocol.startswith("sasl"), protocol.endswith("ssl")
        return KafkaSecurity(
            protocol,
            "SCRAM-SHA-512" if is_tls else "PLAIN",
            user if is_sasl else None,
            password if is_sasl else None,
            ca=self.cert if is_tls else None,
            cert=self.cert if protocol == "ssl" else None,
            key=self.key if protocol == "ssl" else None,
        )

    def start(self) -> None:
        make_certificate(self.cert, self.key)
        super().start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        secret = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        for done in admin.alter_user_scram_credentials([secret]).values():
            done.result(30)

    def let_write(self, user: str, topic: str) -> None:
        """Add to the broker's ACLs that this user may write to the topic."""
        operations = (AclOperation.WRITE, AclOperation.DESCRIBE)
        bindings = [
            AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", each, ALLOW)
            for each in operations
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.create_acls(bindings).values():
            done.result(30)

    def _choose(self) -> tuple[Flavour, list[str]]:
        flavour, argv = super()._choose()
        if flavour != "apache":
            raise StackError("only Apache Kafka has such listeners")
        keystore = self._folder / "keystore.pem"
        keystore.write_text(self.key.read_text() + self.cert.read_text())
        properties = Path(argv[-1])
        asked = PROPERTIES.format(keystore=keystore, cert=self.cert)
        for listener in LISTENERS[:2]:
            users = " ".join(f'user_{user}="{PASSWORD}"' for user in (USER, TENANT_USER))
            asked += JAAS.format(listener=listener, package="org.apache.kafka.common.security", users=users)
        properties.write_text(self._with_listeners(properties.read_text()) + asked)
        return flavour, argv

    def _with_listeners(self, properties: str) -> str:
        more = {
            "listeners": [f"{each.upper()}://{self.bootstrap_of(each)}" for each in LISTENERS],
            "advertised.listeners": [f"{each.upper()}://{self.bootstrap_of(each)}" for each in LISTENERS],
            "listener.security.protocol.map": [f"{each.upper()}:{each.upper()}" for each in LISTENERS],
        }
        lines = (",".join([line, *more.get(line.partition("=")[0], ())]) for line in properties.splitlines())
        return "\n".join(lines) + "\n"


def make_certificate(cert: Path, key: Path) -> None:
    """One that signs itself, for loopback."""
    names = ["-subj", "/CN=fencepost", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*new, *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
