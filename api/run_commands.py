"""POST /v1/runs/{id}/cancel and /replay: commands about one run, applied by the owner of its job like any other."""

from __future__ import annotations

from uuid import UUID

from api.command_calls import CommandCalls, command_head, command_id_of, idempotency_key
from api.endpoints import Accepted, Call
from api.problems import Problem
from api.runs import FoundRun, Runs, run_view
from ledger.connection import session
from ledger.runs import RunState, read_run
from ledger.shards import Shards
from schemas import http_operations as http
from schemas.commands import CancelRun, Command, ReplayRun
from schemas.errors import TryAgain
from schemas.http import NoBody

CANCELLABLE = ("pending", "leased", "held")


class RunCommands:
    def __init__(self, shards: Shards, runs: Runs, commands: CommandCalls) -> None:
        self._shards = shards
        self._runs = runs
        self._commands = commands

    async def cancel(self, call: Call[NoBody]) -> http.RunCancelled | Accepted[http.RunCommandAccepted]:
        """Cancel a run: at once when nobody executes it, else with its worker's next heartbeat.

        Raises Problem 404, or 409 saying how the run ended before.
        """
        run_id = call.id("run")
        if await self._is_repeated(call, "cancel", run_id):
            return await self._cancelled(call, run_id)
        found = await self._runs.find(call.identity, run_id)
        if _state(run_id, found) not in CANCELLABLE:
            raise _ended(run_id, found)
        command = CancelRun(**command_head(call, "cancel", found.job_id, run_id=run_id), run_id=run_id)
        if await self._apply(call, command, run_id, CANCELLABLE) is None:
            return _accepted(run_id, command)
        return await self._cancelled(call, run_id)

    async def replay(self, call: Call[NoBody]) -> http.RunReplayed | Accepted[http.RunCommandAccepted]:
        """Give a dead run all its attempts again.

        Raises Problem 404, or 409 for one that is not dead.
        """
        run_id = call.id("run")
        if await self._is_repeated(call, "replay", run_id):
            return await self._replayed(run_id)
        found = await self._runs.find(call.identity, run_id)
        if _state(run_id, found) != "dead":
            raise _not_dead(run_id, found)
        command = ReplayRun(**command_head(call, "replay", found.job_id, run_id=run_id), run_id=run_id)
        if await self._apply(call, command, run_id, ("dead",)) is None:
            return _accepted(run_id, command)
        return await self._replayed(run_id)

    async def _is_repeated(self, call: Call[NoBody], verb: str, run_id: UUID) -> bool:
        """A repetition must get its answer although the run is not any more as it was."""
        key = idempotency_key(call)
        if key is None:
            return False
        return await self._commands.was_applied(command_id_of(call.identity, key, verb, run_id), run_id)

    async def _apply(self, call: Call[NoBody], command: Command, run_id: UUID, states: tuple[str, ...]) -> object:
        """As CommandCalls.apply; a run that changed meanwhile is told as what it has become."""
        try:
            return await self._commands.apply(command)
        except Problem:
            found = await self._runs.find(call.identity, run_id)
            if _state(run_id, found) in states:
                raise
            raise _ended(run_id, found) if isinstance(command, CancelRun) else _not_dead(run_id, found) from None

    async def _cancelled(self, call: Call[NoBody], run_id: UUID) -> http.RunCancelled:
        row = await self._row(run_id)
        if row is not None:
            asked = row.cancel_reason is not None
            return http.RunCancelled(run_id=run_id, state=row.state, cancel_requested=asked)
        state = await self._end_of(call, run_id)
        return http.RunCancelled(run_id=run_id, state=state, cancel_requested=False)

    async def _end_of(self, call: Call[NoBody], run_id: UUID) -> str:
        """Cancelled, unless its worker is known to have completed it first."""
        try:
            state = _state(run_id, await self._runs.find(call.identity, run_id))
        except (Problem, TryAgain):  # the history has not heard of its end yet
            return "cancelled"
        return "completed" if state == "completed" else "cancelled"

    async def _replayed(self, run_id: UUID) -> http.RunReplayed:
        row = await self._row(run_id)
        if row is None:  # leased and ended within the moment
            return http.RunReplayed(run_id=run_id, state="unknown", due_at=None)
        return http.RunReplayed(run_id=run_id, state=row.state, due_at=row.due_at)

    async def _row(self, run_id: UUID) -> RunState | None:
        async with session(self._shards.of_run(run_id)) as conn:
            return await read_run(conn, run_id)


def _state(run_id: UUID, found: FoundRun) -> str:
    return run_view(run_id, found).state


def _ended(run_id: UUID, found: FoundRun) -> Problem | TryAgain:
    state = _state(run_id, found)
    if state == "unknown":
        return TryAgain("the run has ended, and how is not known yet")
    return Problem(409, f"the run is {state} already")


def _not_dead(run_id: UUID, found: FoundRun) -> Problem:
    return Problem(409, f"only a dead run can be replayed; this one is {_state(run_id, found)}")


def _accepted(run_id: UUID, command: Command) -> Accepted[http.RunCommandAccepted]:
    location = (b"location", f"/v1/runs/{run_id}".encode())
    return Accepted(http.RunCommandAccepted(run_id, command.command_id), headers=[location])
