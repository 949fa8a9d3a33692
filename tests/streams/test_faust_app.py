"""What we override of Faust is private: this says what to look at when Faust moves."""

from __future__ import annotations

import inspect
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiokafka
import faust
import pytest
from aiokafka.consumer.fetcher import Fetcher
from faust.app.base import App
from faust.assignor import PartitionAssignor
from faust.models import Record
from faust.tables import TableManager
from faust.transport.conductor import Conductor
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, ConsumerRebalanceListener, Transport
from mode.threads import MethodQueue

from streams.faust_app import LedgerConsumer, LedgerTransport, OwnersApp, create_owners_app
from streams.ownership import Ownership

PINNED = "0.15.3"


def test_faust_is_the_version_that_was_read() -> None:
    found = version("faust-streaming")
    assert found == PINNED, (
        f"faust-streaming is {found}, streams/faust_app.py was written against the private API of {PINNED}: read "
        "faust/transport/consumer.py, faust/transport/drivers/aiokafka.py, faust/tables/recovery.py, faust/app/base.py "
        "again, run tests/streams/test_streams_role.py, then raise PINNED"
    )


@pytest.mark.parametrize(
    ("home", "name", "parameters"),
    [
        (Consumer, "seek_to_committed", ["self"]),
        (BaseConsumer, "perform_seek", ["self"]),
        (BaseConsumer, "getmany", ["self", "timeout"]),
        (Conductor, "add", ["self", "topic"]),
        (BaseConsumer, "pause_partitions", ["self", "tps"]),
        (BaseConsumer, "resume_partitions", ["self", "tps"]),
        (AIOKafkaConsumerThread, "seek_wait", ["self", "partitions"]),
        (AIOKafkaConsumerThread, "assignment", ["self"]),
        (AIOKafkaConsumerThread, "highwater", ["self", "tp"]),
        (AIOKafkaConsumerThread, "getmany", ["self", "active_partitions", "timeout"]),
        (AIOKafkaConsumerThread, "_fetch_records", ["self", "consumer", "active_partitions", "timeout", "max_records"]),
        (AIOKafkaConsumerThread, "_keepalive2", ["self"]),
        (BaseConsumer, "resume_flow", ["self"]),
        (Fetcher, "_create_fetch_waiter", ["self"]),
        (Fetcher, "_get_actions_per_node", ["self", "assignment"]),
        (Fetcher, "_notify", ["self", "future"]),
        (PartitionAssignor, "metadata", ["self", "topics"]),
        (PartitionAssignor, "_perform_assignment", ["self", "cluster", "member_metadata"]),
        (
            PartitionAssignor,
            "_protocol_assignments",
            ["self", "assignments", "cl_distribution", "tp_distribution", "topic_groups"],
        ),
        (App, "_new_transport", ["self"]),
        (App, "on_rebalance_start", ["self"]),
        (App, "wait_until_stopped", ["self"]),
        (TableManager, "on_start", ["self"]),
    ],
)
def test_what_we_override_or_call_has_the_shape_we_rely_on(home: type, name: str, parameters: list[str]) -> None:
    method = getattr(home, name, None)
    assert method is not None, f"Faust's {home.__name__}.{name} is gone: streams/faust_app.py relies on it"
    found = list(inspect.signature(method).parameters)
    assert found == parameters, f"Faust's {home.__name__}.{name} takes {found} now, not {parameters}"


@pytest.mark.parametrize(
    ("method", "text", "why"),
    [
        (BaseConsumer.perform_seek, "self.seek_to_committed()", "perform_seek asks seek_to_committed for offsets"),
        (BaseConsumer._drain_messages, "getmany = self.getmany", "what was fetched is asked of getmany"),
        (BaseConsumer._drain_messages, "async for tp, message in ait", "and taken from it one by one"),
        (BaseConsumer.getmany, "if not self.flow_active", "nothing is passed on in a rebalance"),
        (BaseConsumer.getmany, "new_generation_id != generation_id", "nor what was fetched before it"),
        (ConsumerRebalanceListener.on_partitions_revoked, "app.on_rebalance_start()", "a rebalance is announced first"),
        (App._on_partitions_assigned, "self.crash(exc)", "an error in an assignment crashes the app"),
        (
            TableManager.on_start,
            "await self.sleep(1.0) if not self.should_stop: await self._update_channels() await self.recovery.start()",
            "we leave out a sleep and nothing else",
        ),
        (
            AIOKafkaConsumerThread._create_worker_consumer,
            "self.app.assignor if self.app.conf.table_standby_replicas > 0",
            "our assignor is asked",
        ),
        (Record.from_data, "__strict__=False", "a field more in what a member tells is no error"),
        (MethodQueue.call, "call_soon_threadsafe(self._queue_put", "a call wakes the thread, which has no timer"),
        (Fetcher._fetch_requests_routine, "for waiter in self._fetch_waiters", "who waits is told of what was fetched"),
        (
            Fetcher._fetch_requests_routine,
            "if not task.done(): task.cancel() with contextlib.suppress(asyncio.CancelledError): await task",
            "a fetch that has just ended counts as under way after a rebalance; without that nothing has to settle",
        ),
    ],
)
def test_faust_still_does_what_we_build_on(method: Any, text: str, why: str) -> None:
    source = " ".join(inspect.getsource(method).split())
    assert text in source, f"{method.__qualname__} has no {text!r} any more, by which {why}"


def test_an_owner_that_waits_for_the_ledger_stays_in_the_group(tmp_path: Path) -> None:
    """Case kaf-009. aiokafka leaves the group when nothing was read for this long, though heartbeats go on."""
    app = create_owners_app("127.0.0.1:1", "group", "commands", Ownership("me", 1.0), tmp_path)
    assert app.conf.broker_max_poll_interval >= timedelta(days=7).total_seconds()


def test_the_overrides_override() -> None:
    assert issubclass(LedgerConsumer, Consumer)
    assert issubclass(LedgerTransport, Transport)
    assert LedgerTransport.Consumer is LedgerConsumer
    assert issubclass(OwnersApp, faust.App)
    assert hasattr(aiokafka.errors, "IllegalStateError")
