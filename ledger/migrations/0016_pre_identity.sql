-- Tokens that end by themselves, or give way to another one. Code of before takes one for in force until it is revoked.
ALTER TABLE tokens ADD expires_at timestamptz, ADD replaced_by text;

-- Who changed what. An outbox of its own, for a relay of before would stand still before what it cannot read.
CREATE TABLE audit_outbox (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT now(),
    partition int NOT NULL,
    actions   text[] NOT NULL,
    tenants   text[] NOT NULL,
    actors    text[] NOT NULL,
    subjects  text[] NOT NULL,
    details   text[] NOT NULL
);

CREATE TRIGGER audit_wakes_relay AFTER INSERT ON audit_outbox FOR EACH STATEMENT EXECUTE FUNCTION wake_relay();
