-- Outcomes of commands are dropped a few at a time, the oldest first: of many a statement that looks at all of them would
-- take longer than a transaction may, and would never have dropped any.
CREATE INDEX applied_commands_by_age ON applied_commands (applied_at);
CREATE INDEX keyed_commands_by_age ON keyed_commands (at);
