"""procrastinate: its asynchronous worker with 100 jobs at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.tally import Script, Started, main

CONCURRENCY = 100


class Procrastinate(Script):
    _app: Any = None

    async def setup(self) -> None:
        await (await self._opened()).schema_manager.apply_schema_async()

    async def add(self, dues: list[float | None]) -> None:
        await self._opened()
        by_due: dict[float | None, int] = {}
        for due in dues:
            by_due[due] = by_due.get(due, 0) + 1
        for due, jobs in by_due.items():
            await self._deferrer(due).batch_defer_async(*[{"due": due or 0.0}] * jobs)

    async def add_one(self, due: float | None) -> None:
        await self._opened()
        await self._deferrer(due).defer_async(due=due or 0.0)

    async def left(self) -> int:
        row = await self._app.connector.execute_query_one_async(
            "SELECT count(*) AS left FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(row["left"])

    async def work(self, started: Started) -> None:
        app = await self._opened()

        async def noop(due: float) -> None:
            started(due)

        app.task(name="noop")(noop)
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    def _deferrer(self, due: float | None) -> Any:
        at = {} if due is None else {"schedule_at": datetime.fromtimestamp(due, UTC)}
        return self._app.configure_task("noop", **at)

    async def _opened(self) -> Any:
        if self._app is None:
            self._app = App(connector=PsycopgConnector(conninfo=self.store))
            await self._app.open_async()
        return self._app


if __name__ == "__main__":
    main(Procrastinate)
