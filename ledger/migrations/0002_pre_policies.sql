-- What the policies of jobs and runs need: overlap, deadlines, timeouts, retries, cancelling, pauses of queues.

ALTER TABLE jobs
    ADD overlap          smallint NOT NULL DEFAULT 0 CONSTRAINT jobs_overlap CHECK (overlap BETWEEN 0 AND 2),
    ADD timeout_s        float8,
    ADD start_deadline_s float8,
    ADD retry_backoff    smallint NOT NULL DEFAULT 0 CONSTRAINT jobs_retry_backoff CHECK (retry_backoff BETWEEN 0 AND 2),
    ADD retry_base_s     float8 NOT NULL DEFAULT 1,
    ADD retry_max_s      float8 NOT NULL DEFAULT 600,
    ADD tzdata_version   text,
    ADD edited_at        timestamptz;

ALTER TABLE runs
    ADD overlap         smallint NOT NULL DEFAULT 0,
    ADD timeout_s       float8,
    ADD start_by        timestamptz,
    ADD attempt_ends_at timestamptz,
    ADD cancel_reason   text,
    ADD progress        text,
    ADD CONSTRAINT runs_of_an_attempt CHECK ((attempt_ends_at IS NULL AND cancel_reason IS NULL) OR (
        state = 'leased' AND (cancel_reason IS NULL OR cancel_reason IN ('cancelled', 'replaced'))));

ALTER TABLE outbox
    ADD counts bigint[],
    ADD gated  boolean[];

-- The one leased run of a job whose overlap is not allow. Taken by the statement that leases the run, freed by whichever
-- ends the lease.
CREATE TABLE job_slots (
    job_id uuid PRIMARY KEY,
    run_id uuid NOT NULL
);

-- Queues and tenants that are, or were, paused: nothing of theirs is leased while a pause is open.
CREATE TABLE pauses (
    tenant     text NOT NULL,
    queue      text,                               -- NULL: every queue of the tenant
    paused_at  timestamptz NOT NULL DEFAULT now(),
    resumed_at timestamptz,
    by         text NOT NULL                       -- the token's id
);
CREATE UNIQUE INDEX pauses_open ON pauses (tenant, queue) NULLS NOT DISTINCT WHERE resumed_at IS NULL;
CREATE INDEX pauses_by_tenant ON pauses (tenant, paused_at);

-- What a command that an HTTP caller named with a key was sent with: the same key with another body is a mistake.
CREATE TABLE keyed_commands (
    command_id uuid PRIMARY KEY,
    digest     bytea NOT NULL,
    at         timestamptz NOT NULL DEFAULT now()
);

-- Who took a partition over when: for telling why a run waited.
CREATE TABLE takeovers (
    partition       int NOT NULL,
    epoch           bigint NOT NULL,
    owner           text NOT NULL,
    at              timestamptz NOT NULL DEFAULT now(),
    decided_through timestamptz NOT NULL,          -- how far the owner before had come: the last sign of it
    PRIMARY KEY (partition, epoch)
);

-- Makes o the owner of p under a new epoch, once every transaction under the old one has ended.
CREATE OR REPLACE FUNCTION take_over(p int, o text)
    RETURNS TABLE (epoch bigint, previous_owner text, consumed_offset bigint, decided_through timestamptz)
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(fence_class(), p);
    RETURN QUERY
        WITH before AS (SELECT b.owner FROM partitions b WHERE b.partition = p), taken AS (
            UPDATE partitions t SET epoch = t.epoch + 1, owner = o, owner_since = now()
            FROM before WHERE t.partition = p
            RETURNING t.epoch, before.owner AS previous_owner, t.consumed_offset, t.decided_through
        ), noted AS (
            INSERT INTO takeovers (partition, epoch, owner, decided_through)
            SELECT p, t.epoch, o, t.decided_through FROM taken t
        )
        SELECT t.epoch, t.previous_owner, t.consumed_offset, t.decided_through FROM taken t;
END $$;
