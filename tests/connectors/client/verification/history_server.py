"""A server on loopback with a real history behind it; of the ledger it knows what a test tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from fencepost.verification.events import Event, JobEvent, RunEvent
from schemas.http_explanations import Finding
from streams.history_queries import HistoryQueries
from streams.history_store import HistoryStore
from streams.history_tables import RUN_EVENT_COLUMNS

TENANT = "acme"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HistoryServer:
    """runs: the state of each run that the ledger knows. behind: why the doctor finds the history behind.

    refused: why the token may ask nothing.
    """

    def __init__(self, store: HistoryStore) -> None:
        self.runs: dict[str, str] = {}
        self.behind: str | None = None
        self.refused: str | None = None
        self._store, self._queries, self._offset = store, HistoryQueries(store), 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, answer = server.answer(self.path, json.loads(body) if body else {})
                self.send_response(status)
                self.end_headers()
                self.wfile.write(msgspec.json.encode(answer))

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                """Not on the test's output."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False  # so that closing waits for them: the history is closed next
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def tell(self, events: Sequence[Event]) -> None:
        """What happened comes into the history, a record each, all in partition 3."""
        for event in events:
            self._store.append([_row(event, self._offset)], {3: self._offset + 1})
            self._offset += 1

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if self.refused is not None:
            return 403, {"status": 403, "detail": self.refused}
        match path.split("/")[2:]:
            case ["query"]:
                answer = self._queries.query(TENANT, body["sql"], body["limit"])
                columns = [column._asdict() for column in answer.columns]
                return 200, {"columns": columns, "rows": answer.rows, "truncated": answer.truncated}
            case ["whoami"]:
                return 200, {"tenant": TENANT, "role": "operator", "tokenId": "1"}
            case ["doctor"]:
                status: Any = "ok" if self.behind is None else "warn"
                checks = [
                    Finding(check=check, status=status, detail=str(self.behind)) for check in ("outbox", "history")
                ]
                return 200, {"status": status, "findings": checks}
            case ["runs", run_id] if run_id in self.runs:
                known = {"runId": run_id, "jobId": run_id, "state": self.runs[run_id], "queue": "mail", "attempt": 0}
                return 200, known
        return 404, {"status": 404, "detail": "no such thing"}


def _row(event: Event, offset: int) -> tuple[Any, ...]:
    known: dict[str, Any] = {
        **{"event_id": f"0-{offset}-0", "type": event.type, "happened_at": event.at, "tenant": TENANT},
        **{"job_id": event.job_id, "version": event.version, "queue": event.queue, "lane": "normal"},
        **{"reason": event.reason, "partition": 3, "topic_offset": offset},
    }
    if isinstance(event, JobEvent):
        known |= {"scheduled_for": event.first, "due_at": event.last, "count": event.count}
        known["definition"] = event.definition
    else:
        known |= _of_run(event)
    values = [known.get(name) for name in RUN_EVENT_COLUMNS]
    return tuple(
        (each - _EPOCH) // timedelta(microseconds=1) if isinstance(each, datetime) else each for each in values
    )


def _of_run(event: RunEvent) -> dict[str, Any]:
    fields = asdict(event)
    same = {name: fields[name] for name in ("run_id", "scheduled_for", "due_at", "attempt")}
    return same | {"lease_token": event.token, "worker_id": event.worker, "lease_expires_at": event.expires_at}
