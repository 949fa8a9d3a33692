"""The client holds copies of what the server defines, as it imports nothing of it: they must be equal."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from connectors.client.generate_copies import PACKAGE, copies, stale_files, write_copies
from fencepost import ids as client_ids
from fencepost import job_spec, wire
from schemas import codec, commands
from schemas import ids as server_ids


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.avsc")}


def test_avro_schemas_equal_the_server_s_byte_for_byte() -> None:
    server = files_of(codec.AVRO_FOLDER)
    assert server
    assert files_of(wire.AVRO_FOLDER) == server


def test_making_the_copies_anew_changes_nothing() -> None:
    wanted = copies()
    assert {path: (PACKAGE / path).read_bytes() for path in wanted} == wanted
    assert stale_files(PACKAGE, wanted) == []


def test_making_the_copies_mends_and_removes(tmp_path: Path) -> None:
    for folder in ("avro", "schedules"):
        shutil.copytree(PACKAGE / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    edited, gone = tmp_path / "schedules" / "cron.py", tmp_path / "avro" / "io.fencepost.Gone.avsc"
    edited.write_text("changed by hand")
    gone.write_text("{}")
    write_copies(tmp_path)
    assert edited.read_bytes() == (PACKAGE / "schedules" / "cron.py").read_bytes()
    assert not gone.exists()


def test_schema_ids_equal_those_of_the_built_in_registry() -> None:
    assert dict(wire.BUILT_IN_IDS) == {name: codec.BUILT_IN_IDS[name] for name in wire.BUILT_IN_IDS}
    assert set(wire.BUILT_IN_IDS) == {*commands.COMMANDS, "CommandBatch"}


def test_job_spec_has_the_server_s_fields_and_defaults() -> None:
    ours, theirs = (
        {field.encode_name: field.default for field in msgspec.structs.fields(struct)}
        for struct in (job_spec.JobSpec, commands.JobSpec)
    )
    assert ours == theirs
    assert job_spec.PAYLOAD_MAX_BYTES == commands.PAYLOAD_MAX_BYTES


@given(st.binary(max_size=64))
def test_murmur2_equals_the_server_s(data: bytes) -> None:
    assert client_ids.murmur2(data) == server_ids.murmur2(data)


@given(st.uuids(), st.integers(1, server_ids.MAX_PARTITIONS))
def test_partition_equals_the_server_s(job_id: UUID, partitions: int) -> None:
    assert client_ids.partition_of_job(job_id, partitions) == server_ids.partition_of_job(job_id, partitions)


@given(st.text(), st.text())
def test_idempotent_id_equals_the_server_s(tenant: str, key: str) -> None:
    assert client_ids.idempotent_id(tenant, key) == server_ids.idempotent_id(tenant, key)


def test_new_ids_are_version_7_and_grow_with_time() -> None:
    new = [client_ids.new_id() for _ in range(100)]
    assert {(one.version, one.variant) for one in new} == {(7, "specified in RFC 4122")}
    milliseconds = [one.int >> 80 for one in new]
    assert milliseconds == sorted(milliseconds)
    assert len(set(new)) == 100
