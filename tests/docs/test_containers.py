"""The compose file and the image, as far as they can be judged without a container engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from connectors.stack.kafka_jars import KAFKA_VERSION
from fencepostd.cli import main
from tests.docs.papers import ROOT
from tests.docs.test_papers import resolve

ROLES = ("streams-0", "streams-1", "relay", "history", "api")
OURS = ("init", *ROLES)
Service = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file, with the defaults of its variables filled in."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.yml").read_text())
    assert "${" not in text
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Service]:
    found: dict[str, Service] = compose["services"]
    return found


def test_a_whole_installation_is_there(services: dict[str, Service]) -> None:
    assert set(services) == {"kafka", "postgres", *OURS}
    assert [services[name]["image"] for name in OURS] == ["fencepost-server"] * len(OURS)


@pytest.mark.parametrize("name", OURS)
def test_every_role_s_command_line_is_complete(
    services: dict[str, Service], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in services[name]["environment"].items():
        monkeypatch.setenv(variable, value)
    command, arguments = resolve(main, services[name]["command"])
    command.make_context(command.name, arguments)  # raises click.UsageError for what is missing or unknown


@pytest.mark.parametrize("name", OURS)
def test_every_variable_of_a_role_is_one_that_fencepostd_reads(services: dict[str, Service], name: str) -> None:
    known = {parameter.envvar for command in every_command(main) for parameter in command.params}
    assert set(services[name]["environment"]) <= known


def every_command(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from every_command(child)


def test_roles_start_only_when_the_ledger_and_the_topics_are_there(services: dict[str, Service]) -> None:
    init = {"init": {"condition": "service_completed_successfully"}}
    assert [services[role]["depends_on"] for role in ROLES] == [init] * len(ROLES)
    assert services["init"]["depends_on"] == {name: {"condition": "service_healthy"} for name in ("kafka", "postgres")}


def test_whatever_goes_on_is_watched(services: dict[str, Service]) -> None:
    assert [name for name in ("kafka", "postgres", *ROLES) if "test" not in services[name]["healthcheck"]] == []


def test_roles_are_watched_where_they_listen(services: dict[str, Service]) -> None:
    for role in ROLES:
        port = services[role]["environment"]["FENCEPOST_PORT"]
        assert f"http://127.0.0.1:{port}/" in services[role]["healthcheck"]["test"][-1]


def test_ports_are_published_on_loopback_only(services: dict[str, Service]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert "ports" not in services["history"]  # it does not ask for a token


def test_what_must_survive_is_on_volumes_that_are_declared(compose: dict[str, Any]) -> None:
    mounted = {
        name: volume.split(":")
        for name, service in compose["services"].items()
        for volume in service.get("volumes", ())
    }
    assert set(mounted) == {"kafka", "postgres", "streams-0", "streams-1", "history"}
    assert {volume for volume, _ in mounted.values()} == set(compose["volumes"])
    for role in ("streams-0", "streams-1", "history"):
        assert mounted[role][1] == compose["services"][role]["environment"]["FENCEPOST_STATE"]


def test_owners_have_names_and_folders_of_their_own(services: dict[str, Service]) -> None:
    assert services["streams-0"]["command"] != services["streams-1"]["command"]
    assert services["streams-0"]["volumes"] != services["streams-1"]["volumes"]


def test_the_brokers_version_is_the_one_that_is_tested(services: dict[str, Service]) -> None:
    assert services["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert services["postgres"]["image"] == "postgres:18"


def test_the_broker_tells_each_side_an_address_that_it_listens_on(services: dict[str, Service]) -> None:
    environment = services["kafka"]["environment"]
    listening = dict(entry.split("://:") for entry in environment["KAFKA_LISTENERS"].split(","))
    advertised = dict(entry.split("://") for entry in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
    protocols = dict(entry.split(":") for entry in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(protocols) == set(listening) == {*advertised, environment["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert {name: address.rpartition(":")[2] for name, address in advertised.items()}.items() <= listening.items()
    assert advertised["INTERNAL"] == services["api"]["environment"]["FENCEPOST_KAFKA"]


def test_the_image_has_what_it_copies_and_runs_as_nobody_special() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    final = dockerfile.rpartition("\nFROM ")[2]
    assert re.search(r"^USER fencepost$", final, re.MULTILINE)
    assert 'ENTRYPOINT ["fencepostd"]' in final
    copied = re.findall(r"requirements[\w-]*\.lock", dockerfile)
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_s_lock_is_a_part_of_the_lock_that_was_tested() -> None:
    """Without the stack's and the developers' packages, every line of it the same, hashes included."""
    whole = (ROOT / "requirements.lock").read_text().splitlines()
    server = (ROOT / "requirements-server.lock").read_text().splitlines()
    assert set(server) <= set(whole)
    assert len(server) < len(whole)
