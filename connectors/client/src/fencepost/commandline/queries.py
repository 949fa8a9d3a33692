"""`fencepost query …`."""

from __future__ import annotations

import click

from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.rendering import print_csv, print_json_rows, print_table


@click.command()
@click.argument("sql")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Rows at most.")
@click.option("--json", "form", flag_value="json", help="One JSON object a row.")
@click.option("--csv", "form", flag_value="csv", help="CSV with a header.")
@pass_connection
def query(connection: Connection, sql: str, limit: int, form: str | None) -> None:
    """Ask the history, in read-only SQL.

    \b
    Tables
      runs        the latest state of each run
      attempts    each lease of a run: by whom, from when to when, and what became of it
      jobs        the latest state of each job
      decisions   of each occurrence what was decided last, and why
      run_events  every event of runs and jobs
      audit       who changed what
    \b
    Examples
      fencepost query "SELECT state, count(*) FROM runs GROUP BY state"
      fencepost query "SELECT happened_at, type, attempt FROM run_events WHERE run_id = '019a…' ORDER BY version"
      fencepost query "SELECT happened_at, actor, action, subject FROM audit ORDER BY happened_at DESC LIMIT 20"
      fencepost query --csv "SELECT * FROM runs" > runs.csv
    """
    with connection.client() as client:
        answer = client.query(sql, limit=limit)
    {"json": print_json_rows, "csv": print_csv, None: print_table}[form](answer)
    if answer.truncated and form is not None:
        click.echo(f"only the first {limit} rows: raise --limit, or narrow the query", err=True)
