"""TLS and SASL reach every client of Kafka, whichever library it is of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psycopg
import pytest
from aiokafka.conn import create_conn
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from connectors.stack.ports import free_port
from fencepost import CommandProducer, JobSpec, KafkaUnreachable, at
from fencepostd import roles
from fencepostd.cli import main
from fencepostd.settings import Settings
from schemas.codec import Codec
from streams.kafka_security import KafkaSecurity, Protocol
from tests.fencepostd.installation import JOBS, answering, installed
from tests.fencepostd.secured_kafka import LISTENERS, TENANT_USER, SecuredKafka

pytestmark = pytest.mark.apache_kafka(reason="tansu asks nobody who he is")


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    broker = SecuredKafka(tmp_path_factory.mktemp("secured"))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


async def let_in(bootstrap: str, security: KafkaSecurity) -> None:
    """Return once a client of each library has talked to the broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **security.librdkafka()}, logger=None)
    assert (await asyncio.to_thread(admin.list_topics, timeout=30)).brokers
    credentials = credentials_to_aiokafka_auth(security.faust()["broker_credentials"])
    host, _, port = bootstrap.partition(":")
    connection = await create_conn(host, int(port), **credentials)  # it has been let in once it is there
    writer = connection._writer
    connection.close()
    await writer.wait_closed()


@pytest.mark.parametrize("protocol", LISTENERS)
async def test_both_libraries_are_let_in_by_each_protocol(secured_kafka: SecuredKafka, protocol: Protocol) -> None:
    await let_in(secured_kafka.bootstrap_of(protocol), secured_kafka.security(protocol))


def test_a_wrong_password_and_no_certificate_are_refused(secured_kafka: SecuredKafka) -> None:
    def ask(protocol: Protocol, security: KafkaSecurity) -> None:
        config = {"bootstrap.servers": secured_kafka.bootstrap_of(protocol), "log_level": 0, **security.librdkafka()}
        AdminClient(config).list_topics(timeout=2)

    with pytest.raises(KafkaException):
        ask("sasl_plaintext", secured_kafka.security("sasl_plaintext", password="another"))
    with pytest.raises(KafkaException):
        ask("ssl", KafkaSecurity("ssl", ca=secured_kafka.cert))


async def test_a_whole_installation_works_by_sasl_over_tls_alone(
    secured_kafka: SecuredKafka, empty_ledger_dsn: str, tmp_path: Path
) -> None:
    bootstrap, security = secured_kafka.bootstrap_of("sasl_ssl"), secured_kafka.security("sasl_ssl")
    async with installed(bootstrap, [empty_ledger_dsn], tmp_path, security) as installation:
        await asyncio.to_thread(installation.create, "mail")
        await installation.work("mail", lambda finished: len(finished) == JOBS)
        await installation.completed(JOBS, "mail")


async def test_a_producer_whom_the_brokers_acls_tie_to_its_tenants_topic_commands_for_no_other_tenant(
    secured_kafka: SecuredKafka, empty_ledger_dsn: str, tmp_path: Path
) -> None:
    bootstrap, security = secured_kafka.bootstrap_of("sasl_ssl"), secured_kafka.security("sasl_ssl")
    theirs = secured_kafka.security("sasl_plaintext", user=TENANT_USER).librdkafka()

    def create(tenant: str, prefix: str) -> None:
        where = secured_kafka.bootstrap_of("sasl_plaintext")
        with CommandProducer(where, tenant=tenant, topic_prefix=prefix, partitions=16, kafka_config=theirs) as producer:
            producer.create_job(JobSpec(queue=f"of-{tenant}", schedule=at(datetime.now(UTC))))

    async with installed(bootstrap, [empty_ledger_dsn], tmp_path, security) as installation:
        prefix, stop = installation.topics.prefix, asyncio.Event()
        settings = Settings("", bootstrap, installation.topics, tmp_path, port=free_port(), security=security)
        gate = asyncio.create_task(roles.run_gate(settings, ["acme"], stop))
        own = f"{prefix}.tenant.acme"
        await asyncio.to_thread(secured_kafka.let_write, TENANT_USER, f"{own}.commands")
        await until_answered(settings.port)
        with pytest.raises(KafkaUnreachable):
            await asyncio.to_thread(create, "acme", prefix)
        await asyncio.to_thread(create, "zoo", own)
        rejected = await asyncio.to_thread(first_of, secured_kafka.bootstrap, installation.topics.rejected)
        assert Codec().decode(rejected)[1]["code"] == "tenant_forbidden"
        await asyncio.to_thread(create, "acme", own)
        await installation.work("of-acme", lambda finished: len(finished) == 1)
        stop.set()
        await gate
    with psycopg.connect(empty_ledger_dsn) as conn:
        assert conn.execute("SELECT DISTINCT tenant FROM jobs").fetchall() == [("acme",)]


def first_of(bootstrap: str, topic: str) -> bytes:
    """The value of a topic's first record, once there is one."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    record = consumer.poll(60)
    consumer.close()
    assert record is not None
    return bytes(record.value())


async def until_answered(port: int) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        await answering(http)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kafka-security-protocol", "sasl_ssl"], "sasl_ssl takes a username and a password"),
        (["--kafka-sasl-password-file", "/nowhere"], "'/nowhere' does not exist"),
        (["--kafka-security-protocol", "ssl", "--kafka-cert-file", __file__], "a certificate takes its key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(options: list[str], said: str) -> None:
    refused = CliRunner().invoke(main, ["init", "--kafka", "k:1", "--postgres", "host=p", *options])
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output
