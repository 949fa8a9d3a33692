"""What became of each command (`ledger/commands.py`)."""

from __future__ import annotations

from typing import Any

from ledger.commands import READ_OUTCOMES, RECORD_OUTCOMES
from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import Outcome
from tests.simulation.statements.fence import Statement


@models(READ_OUTCOMES)
def read_outcomes(tx: Transaction, params: Any) -> Rows:
    if not tx.keeps("command ids"):
        return []
    found = (tx.get("applied_commands", command_id) for command_id in params[0])
    return [(each.command_id, each.outcome, each.detail, each.field) for each in found if each is not None]


@models(RECORD_OUTCOMES)
def record_outcomes(tx: Transaction, params: Any) -> Statement:
    for command_id, outcome, detail, field in zip(*params[1:], strict=True):
        if (yield from tx.find_place("applied_commands", command_id)) is None:
            tx.put("applied_commands", command_id, Outcome(command_id, outcome, detail, field, tx.now))
        tx.acts.append(("outcome", command_id, outcome))
    return []
