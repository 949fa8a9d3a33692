-- How many runs of a queue, and of a concurrency key in it, are leased at once. Code of before knows of no such limit:
-- none is to be set before every API process is of this version.
ALTER TABLE jobs ADD concurrency_key text;
ALTER TABLE runs ADD concurrency_key text, ADD permit bigint;

CREATE TABLE live_limits (
    tenant           text NOT NULL,
    queue            text NOT NULL,
    max_live         int CONSTRAINT live_limits_queue CHECK (max_live > 0),
    max_live_per_key int CONSTRAINT live_limits_key CHECK (max_live_per_key > 0),
    counted          boolean NOT NULL DEFAULT false,
    set_at           timestamptz NOT NULL DEFAULT now(),
    set_by           text NOT NULL,
    PRIMARY KEY (tenant, queue)
);

CREATE TABLE permits (
    run_id          uuid PRIMARY KEY,
    permit          bigint GENERATED ALWAYS AS IDENTITY,
    tenant          text NOT NULL,
    queue           text NOT NULL,
    concurrency_key text,
    taken_at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX permits_by_queue ON permits (tenant, queue, concurrency_key);
