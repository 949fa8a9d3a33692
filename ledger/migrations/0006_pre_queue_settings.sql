-- The rate of a queue, and which runs have been set apart by it.
CREATE TABLE queue_settings (
    tenant         text NOT NULL,
    queue          text NOT NULL,
    rate_per_s     float8 CONSTRAINT queue_settings_rate CHECK (rate_per_s > 0 AND rate_per_s <= 1000000),
    rate_version   int NOT NULL DEFAULT 0,
    spread_through timestamptz,
    set_at         timestamptz NOT NULL DEFAULT now(),
    set_by         text NOT NULL,
    PRIMARY KEY (tenant, queue)
);

ALTER TABLE runs ADD rate_version int;

CREATE INDEX runs_spread ON runs (partition, tenant, queue, rate_version, due_at) WHERE rate_version IS NOT NULL;
