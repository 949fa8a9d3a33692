"""One run's whole life, on real Kafka and real Postgres, in about a minute: `make demo`.

Starts the local stack, sends by Kafka the 3,060 real schedules of examples/schedules.jsonl as cron jobs and 1,000
one-off jobs due over 20 s, executes what becomes due with two workers, and shows what happened. Exit code 0 only if
every one-off job was completed exactly once and nothing started early. Leaves nothing running and nothing on disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
from confluent_kafka import Consumer, TopicPartition

from fencepost import CommandProducer, JobSpec, NotFound, SyncClient, at, cron
from fencepostd.local import LOCAL_TENANT, Local
from schemas.codec import Codec
from streams.topics import Topics

SCHEDULES = Path(__file__).parent / "schedules.jsonl"
QUEUE = "demo"
ONE_OFFS = 1_000
SPREAD_S = 20
WORKERS = 2


def main() -> None:
    with stack() as local, workers(local), SyncClient(local.url, local.token) as client:
        heading("Commands, by Kafka")
        cron_jobs, refused_here, one_offs = send_jobs(local)
        wait_until_applied(local)
        rejected = rejected_commands(local)
        show_commands(len(cron_jobs) + len(one_offs), refused_here, rejected)
        heading("Next fire times, in their zones")
        show_next_fires(client, cron_jobs)
        heading(f"Runs, with {WORKERS} workers")
        wait_until_completed(client, len(one_offs))
        heading("What happened, from SQL")
        show_timeline(client, one_offs[len(one_offs) // 2])
        sys.exit(verdict(client, len(one_offs)))


@contextmanager
def stack() -> Iterator[Local]:
    """The local stack in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="fencepost-demo-") as folder:
        local = Local(Path(folder), say)
        local.up()
        try:
            yield local
        finally:
            local.stack.down()


def send_jobs(local: Local) -> tuple[dict[UUID, str], int, list[UUID]]:
    """Send everything; returns the cron jobs (id → expression), how many the client refused, and the one-offs' ids."""
    cron_jobs: dict[UUID, str] = {}
    refused = 0
    begin = datetime.now(UTC) + timedelta(seconds=10)
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        for line in SCHEDULES.read_text().splitlines():
            real = json.loads(line)
            try:
                spec = JobSpec(queue=QUEUE, schedule=cron(real["expr"], real["zone"]), lane="low", name=real["kind"])
                cron_jobs[producer.create_job(spec)] = real["expr"]
            except ValueError:
                refused += 1
        one_offs = [
            producer.create_job(JobSpec(queue=QUEUE, schedule=at(due), payload={"number": number}))
            for number in range(ONE_OFFS)
            for due in [begin + timedelta(seconds=SPREAD_S * number / ONE_OFFS)]
        ]
    say(f"sent {len(cron_jobs):,} cron jobs and {len(one_offs):,} one-off jobs, due from {begin:%H:%M:%S} UTC on")
    return cron_jobs, refused, one_offs


def wait_until_applied(local: Local) -> None:
    """Until the ledger has consumed what the topic holds."""
    ends = sum(end_offsets(local, Topics().commands).values())
    with psycopg.connect(local.stack.dsn, autocommit=True) as conn:
        while consumed(conn) < ends:
            time.sleep(0.1)


def consumed(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("SELECT sum(consumed_offset) FROM partitions").fetchone()
    assert row is not None
    return int(row[0])


def end_offsets(local: Local, topic: str) -> dict[int, int]:
    """The next offset of each partition of a topic."""
    consumer = Consumer({"bootstrap.servers": local.stack.bootstrap, "group.id": "demo"})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        return {number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in partitions}
    finally:
        consumer.close()


def rejected_commands(local: Local) -> list[dict[str, Any]]:
    """Everything on the rejected topic."""
    topic = Topics().rejected
    left = end_offsets(local, topic)
    consumer = Consumer({"bootstrap.servers": local.stack.bootstrap, "group.id": "demo", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    records: list[dict[str, Any]] = []
    while len(records) < sum(left.values()):
        message = consumer.poll(10)
        assert message is not None
        records.append(Codec().decode(message.value())[1])
    consumer.close()
    return records


def show_commands(sent: int, refused_here: int, rejected: Sequence[dict[str, Any]]) -> None:
    say(f"{sent - len(rejected):,} applied, {len(rejected):,} rejected, {refused_here} refused before they were sent")
    say("the commonest reasons:")
    for reason, count in Counter(record["reason"] for record in rejected).most_common(6):
        say(f"  {count:>4} × {reason}")


def show_next_fires(client: SyncClient, cron_jobs: dict[UUID, str]) -> None:
    """Some jobs that have a zone of their own, and one that has none."""
    shown = 0
    for job_id, expression in cron_jobs.items():
        try:
            job = client.job(job_id)
        except NotFound:
            continue  # it was rejected
        zone = job.schedule.get("zone") or "UTC"
        if job.next_run_at and (zone != "UTC" or shown == 0):
            local = job.next_run_at.astimezone(ZoneInfo(zone))
            say(f"  {expression:<18} {zone:<20} {local:%a %d %b %H:%M}   = {job.next_run_at:%d %b %H:%M} UTC")
            shown += 1
        if shown == 6:
            return


@contextmanager
def workers(local: Local) -> Iterator[None]:
    """Worker processes, drained at the end."""
    command = [sys.executable, "-m", "examples.demo_worker", local.url, local.token, QUEUE]
    processes = [subprocess.Popen(command) for _ in range(WORKERS)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


COMPLETED = "SELECT count(*) FROM runs WHERE state = 'completed' AND lane = 'normal'"


def wait_until_completed(client: SyncClient, runs: int, deadline_s: float = SPREAD_S + 60) -> None:
    """Until the history has seen so many runs completed, with a line of progress now and then."""
    until, last = time.monotonic() + deadline_s, -1
    while time.monotonic() < until:
        done = client.query(COMPLETED).rows[0][0]
        if done != last and (done == runs or done // 250 != last // 250):
            say(f"  {done:>5} of {runs} one-off runs completed")
        if done >= runs:
            return
        last = done
        time.sleep(0.25)


TIMELINE = """
SELECT type, happened_at, attempt, lease_token, worker_id, due_at FROM run_events
WHERE job_id = '{job_id}' AND run_id IS NOT NULL ORDER BY version
"""


def show_timeline(client: SyncClient, job_id: UUID) -> None:
    say(f"the one run of job {job_id}:")
    for kind, instant, attempt, token, worker, due in client.query(TIMELINE.format(job_id=job_id)).rows:
        details = {
            "attempt": attempt,
            "token": token,
            "worker": worker,
            "due": due if kind == "run_scheduled" else None,
        }
        say(f"  {instant}  {kind:<14} " + "  ".join(f"{key} {value}" for key, value in details.items() if value))


SUMMARY = """
SELECT count(*), quantile_cont(lateness_ms, 0.5), quantile_cont(lateness_ms, 0.99), max(lateness_ms), min(lateness_ms)
FROM runs WHERE state = 'completed'
"""
EARLY = "SELECT count(*) FROM runs WHERE first_leased_at < due_at"
DOUBLED = """
SELECT count(*) FROM (
    SELECT run_id FROM run_events WHERE type = 'run_completed' GROUP BY run_id HAVING count(*) > 1
)
"""


def verdict(client: SyncClient, one_offs: int) -> int:
    """Print the figures; 0 when every promise held."""
    runs, p50, p99, most, least = client.query(SUMMARY).rows[0]
    say(f"{runs:,} runs completed (one-offs, and cron jobs that came due)")
    say(f"lateness, due → leased, in ms: p50 {p50:.1f}   p99 {p99:.1f}   max {most:.1f}   min {least:.1f}")
    early = client.query(EARLY).rows[0][0]
    doubled = client.query(DOUBLED).rows[0][0]
    lost = one_offs - client.query(COMPLETED).rows[0][0]
    say(f"early: {early}   lost: {lost}   completed twice: {doubled}")
    good = (early, lost, doubled) == (0, 0, 0)
    say("every promise held" if good else "A PROMISE WAS BROKEN")
    return 0 if good else 1


def heading(text: str) -> None:
    say(f"\n== {text}")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
