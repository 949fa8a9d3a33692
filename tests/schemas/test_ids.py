"""Ids and the partitioner: what producers in every language must agree on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import schemas.ids
from schemas.ids import (
    MAX_PARTITIONS,
    idempotent_id,
    murmur2,
    new_id,
    partition_of_job,
    partition_of_run,
    run_id_for,
)

JOB = UUID("0197a5f0-0000-7000-8000-000000000001")
AT = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
partitions = st.integers(0, MAX_PARTITIONS - 1)
instants = st.datetimes(datetime(1970, 1, 1), datetime(2500, 1, 1), timezones=st.just(UTC))

# Apache Kafka's UtilsTest.testMurmur2, as Java's signed numbers.
JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
# librdkafka's unittest_murmur2.
LIBRDKAFKA = {
    "kafka": 0xD067CF64,
    "giberish123456789": 0x8F552B0C,
    "1234": 0x9FC97B14,
    "234": 0xE7C009CA,
    "34": 0x873930DA,
    "4": 0x5A4B5CA1,
    "PreAmbleWillBeRemoved,ThePrePartThatIs": 0x78424F1C,
    "reAmbleWillBeRemoved,ThePrePartThatIs": 0x4A62B377,
    "eAmbleWillBeRemoved,ThePrePartThatIs": 0xE0E4E09E,
    "AmbleWillBeRemoved,ThePrePartThatIs": 0x62B8B43F,
    "": 0x106E08D9,
}


@pytest.mark.parametrize(("text", "signed"), JAVA.items())
def test_murmur2_is_that_of_the_java_client(text: str, signed: int) -> None:
    assert murmur2(text.encode()) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(("text", "unsigned"), LIBRDKAFKA.items())
def test_murmur2_is_that_of_librdkafka(text: str, unsigned: int) -> None:
    assert murmur2(text.encode()) == unsigned


@pytest.mark.parametrize("text", [text for text, signed in JAVA.items() if signed < 0])
def test_a_negative_hash_is_made_positive_by_dropping_its_sign_bit_as_in_java(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its absolute value, with which another partition would come out."""
    monkeypatch.setattr(schemas.ids, "murmur2", lambda _: murmur2(text.encode()))
    assert partition_of_job(JOB, 1000) == (JAVA[text] & 0x7FFFFFFF) % 1000 != abs(JAVA[text]) % 1000


def test_the_partition_of_a_job_goes_by_its_canonical_text() -> None:
    loud = UUID(str(JOB).upper())
    assert partition_of_job(loud, 256) == partition_of_job(JOB, 256)
    assert partition_of_job(JOB, 256) == (murmur2(b"0197a5f0-0000-7000-8000-000000000001") & 0x7FFFFFFF) % 256


@given(st.uuids(), st.integers(1, MAX_PARTITIONS))
def test_every_job_has_a_partition(job_id: UUID, count: int) -> None:
    assert 0 <= partition_of_job(job_id, count) < count


def test_jobs_spread_evenly_over_partitions() -> None:
    counts = [0] * 16
    for _ in range(16_000):
        counts[partition_of_job(new_id(), 16)] += 1
    assert all(800 < count < 1200 for count in counts)


@given(st.uuids(), instants, partitions, st.binary(max_size=16))
def test_the_same_occurrence_has_the_same_run_id_which_knows_its_partition(
    job_id: UUID, at: datetime, partition: int, nonce: bytes
) -> None:
    run_id = run_id_for(job_id, at, partition, nonce)
    assert run_id == run_id_for(job_id, at.astimezone(timezone(timedelta(hours=-7))), partition, nonce)
    assert partition_of_run(run_id) == partition
    assert run_id.version == 8
    assert run_id.variant == "specified in RFC 4122"


@given(st.uuids(), instants, instants, partitions, partitions)
def test_run_ids_are_in_the_order_of_their_milliseconds(
    job_id: UUID, one: datetime, other: datetime, partition: int, other_partition: int
) -> None:
    first, second = sorted((one, other))
    ids = run_id_for(job_id, first, partition), run_id_for(job_id, second, other_partition)
    milliseconds = [run_id.int >> 80 for run_id in ids]
    assert milliseconds == [
        int((at - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)) for at in (first, second)
    ]
    if milliseconds[0] < milliseconds[1]:
        assert ids[0] < ids[1]


def test_run_ids_differ_by_job_microsecond_and_nonce() -> None:
    ids = {
        run_id_for(JOB, AT, 7),
        run_id_for(UUID(int=JOB.int + 1), AT, 7),
        run_id_for(JOB, AT + datetime.resolution, 7),
        run_id_for(JOB, AT, 7, b"a"),
        run_id_for(JOB, AT, 7, b"b"),
    }
    assert len(ids) == 5


def test_a_run_id_stays_what_it_was_in_every_version() -> None:
    """Another derivation would make a retried insert a second run of the occurrence."""
    assert run_id_for(JOB, AT, 0xABC) == UUID("019ca945-0a7b-8abc-beda-598e90379091")


def test_a_run_id_of_a_time_without_a_zone_is_an_error() -> None:
    with pytest.raises(ValueError, match="aware"):
        run_id_for(JOB, datetime(2026, 3, 1), 7)


def test_an_idempotency_key_stands_for_one_id_in_one_tenant() -> None:
    assert idempotent_id("acme", "k1") == idempotent_id("acme", "k1")
    assert len({idempotent_id("acme", "k1"), idempotent_id("acme", "k2"), idempotent_id("other", "k1")}) == 3
    assert idempotent_id("ab", "c") != idempotent_id("a", "bc")
    assert idempotent_id("acme", "k1") == UUID("fcfd9f37-46f7-5480-b60e-1de2f2ad4117")


def test_new_ids_are_version_7_and_carry_the_wall_clock() -> None:
    before = datetime.now(UTC)
    made = new_id()
    after = datetime.now(UTC)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert int(before.timestamp() * 1000) <= made.int >> 80 <= int(after.timestamp() * 1000)


def test_new_ids_of_later_milliseconds_are_greater(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = iter(range(1_700_000_000_000_000_000, 1_700_000_001_000_000_000, 1_000_000))
    monkeypatch.setattr("time.time_ns", lambda: next(clock_ns))
    assert all(one < other for one, other in pairwise(new_id() for _ in range(500)))


def test_new_ids_of_the_same_millisecond_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    assert len({new_id() for _ in range(1000)}) == 1000
