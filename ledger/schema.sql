-- The ledger as it is after all migrations; tests/migrations proves that replaying them gives exactly this.
--
-- The rules behind it (ARCHITECTURE, The fence and Ledger speed):
--   * Every write proves the partition's epoch first: see fence_owner and fence_partitions below.
--   * No index on a column that lease, heartbeat or finish changes, so that those updates are HOT.
--   * The hot table holds only what is to run or running; finished rows leave it for the outbox.

CREATE TABLE settings (
    key   text PRIMARY KEY,
    value text NOT NULL
);

-- Those of this shard: the fence refuses all others.
CREATE TABLE partitions (
    partition       int PRIMARY KEY CHECK (partition BETWEEN 0 AND 4095),
    epoch           bigint NOT NULL DEFAULT 0,     -- grows on every takeover
    owner           text,                          -- the owning process's nonce; NULL after a clean release
    owner_since     timestamptz NOT NULL DEFAULT now(),
    consumed_offset bigint NOT NULL DEFAULT 0,     -- the next offset of the commands topic to apply
    decided_through timestamptz NOT NULL DEFAULT now(), -- every occurrence up to here has one decision
    token_floor     bigint NOT NULL DEFAULT 0      -- lease tokens begin above it; see ledger/restoration.py
) WITH (fillfactor = 50);

-- Home alone has rows in these two: the shards, and which of them has which partition.
CREATE TABLE shards (
    shard int PRIMARY KEY CHECK (shard >= 0),      -- 0 is home; settings has a database's own number
    dsn   text,                                    -- NULL for home: the one that roles are started with
    CHECK ((shard = 0) = (dsn IS NULL))
);

CREATE TABLE placements (
    partition int PRIMARY KEY CHECK (partition BETWEEN 0 AND 4095),
    shard     int NOT NULL REFERENCES shards
);

CREATE TABLE tokens (
    token_id   text PRIMARY KEY,
    token_hash bytea NOT NULL UNIQUE,              -- sha256 of the whole token
    tenant     text NOT NULL,
    role       text NOT NULL CHECK (role IN ('producer', 'worker', 'operator', 'admin')),
    queues     text[],                             -- NULL: every queue of the tenant
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz,
    expires_at timestamptz,                        -- NULL: never
    replaced_by text,                              -- the token that a rotation made in its place
    last_used_at timestamptz                       -- about when: at most some minutes old while it is in use
);

-- active -> paused -> active; either -> deleted (a tombstone, so that no old command brings the job back).
-- An active job with no next_fire_at has no occurrence left. Tombstones and one-offs that are over leave the table in the
-- end, see ledger/job_retention.py.
CREATE TABLE jobs (
    job_id       uuid PRIMARY KEY,
    partition    int NOT NULL,
    tenant       text NOT NULL,
    state        text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'deleted')),
    version      int NOT NULL DEFAULT 1,           -- grows with every command that changes the job
    queue        text NOT NULL,
    lane         smallint NOT NULL CHECK (lane BETWEEN 0 AND 2), -- 0 high, 1 normal, 2 low
    definition   text NOT NULL,                    -- the job's spec as JSON, without its payload
    payload      text,
    max_attempts smallint NOT NULL CHECK (max_attempts > 0),
    next_fire_at timestamptz,                      -- the cursor: the occurrence that is pending, moved by compare-and-set
    created_at   timestamptz NOT NULL,             -- the create command's issuedAt
    paused_at    timestamptz,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    overlap          smallint NOT NULL DEFAULT 0 CONSTRAINT jobs_overlap CHECK (overlap BETWEEN 0 AND 2), -- see runs
    timeout_s        float8,                       -- bounds one attempt
    start_deadline_s float8,                       -- how long after its due time an occurrence may start
    retry_backoff    smallint NOT NULL DEFAULT 0 CONSTRAINT jobs_retry_backoff CHECK (retry_backoff BETWEEN 0 AND 2),
    retry_base_s     float8 NOT NULL DEFAULT 1,    -- retry_backoff: 0 exponential, 1 linear, 2 fixed
    retry_max_s      float8 NOT NULL DEFAULT 600,
    tzdata_version   text,                         -- the rules that the pending occurrence was computed with
    edited_at        timestamptz,                  -- when its pending run was last replaced, by an edit or a new tzdata
    declared_as      text GENERATED ALWAYS AS (definition::jsonb ->> 'declaredAs') STORED, -- set/name, of a file's job
    concurrency_key  text,                         -- of which its queue may limit the live runs; NULL: of none
    CHECK ((state = 'paused') = (paused_at IS NOT NULL)),
    CHECK (state <> 'deleted' OR next_fire_at IS NULL)
) WITH (fillfactor = 80);
CREATE INDEX jobs_by_partition ON jobs (partition);
CREATE INDEX jobs_by_tenant ON jobs (tenant, job_id);
CREATE INDEX jobs_by_declaration ON jobs (tenant, split_part(declared_as, '/', 1), job_id) WHERE declared_as IS NOT NULL;
-- Deleted jobs and those that fire once, by age: for forgetting them. No move of a cursor changes any column of it.
CREATE INDEX jobs_over ON jobs (partition, created_at, job_id)
    WHERE state = 'deleted' OR definition::jsonb -> 'schedule' ?| ARRAY['runAt', 'delaySeconds'];

--            lease                complete
--  pending ---------> leased -----------------> (gone: run_completed in the outbox)
--   | ^  ^             |  |   fail, expiry: attempts left
--   | |  +-------------+  +--------------------> (dead_runs)   attempts used up, or a permanent failure
--   | |   retry, release
--   v |
--   held   while its job is paused
--
-- A leased run with a cancel_reason ends as cancelled, however its attempt ends; 'cancelled' may still be completed.
CREATE TABLE runs (
    run_id           uuid PRIMARY KEY,
    job_id           uuid NOT NULL,
    partition        int NOT NULL,
    tenant           text NOT NULL,
    queue            text NOT NULL,
    lane             smallint NOT NULL,
    state            text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'leased', 'held')),
    version          int NOT NULL DEFAULT 1,       -- grows with every event of the run
    attempt          smallint NOT NULL DEFAULT 0,  -- charged at lease
    max_attempts     smallint NOT NULL,
    lease_token      bigint NOT NULL DEFAULT 0,    -- grows on every lease: fences attempts
    scheduled_for    timestamptz NOT NULL,         -- the nominal time, never changes
    due_at           timestamptz NOT NULL,         -- when it may next be leased
    lease_expires_at timestamptz,
    worker_id        text,
    payload          text,
    -- 0 allow, 1 skip, 2 replace, 3 in turn: it waits for its job's other runs. Not 0: gated, leased only with a slot
    overlap          smallint NOT NULL DEFAULT 0,
    timeout_s        float8,
    start_by         timestamptz,                  -- the last instant at which it may start; NULL: any, or it has started
    attempt_ends_at  timestamptz,                  -- no heartbeat extends the lease beyond it
    cancel_reason    text,                         -- 'cancelled' or 'replaced': the worker is told to stop
    progress         text,                         -- the last note of the attempt
    rate_version     int,                          -- made up for and set apart by this rate of its queue; NULL: not
    concurrency_key  text,                         -- its job's
    permit           bigint,                       -- the last one that it was leased with, or that it can no more be: see permits
    CHECK ((state = 'leased') = (lease_expires_at IS NOT NULL)),
    CHECK ((state = 'leased') = (worker_id IS NOT NULL)),
    CONSTRAINT runs_of_an_attempt CHECK ((attempt_ends_at IS NULL AND cancel_reason IS NULL) OR (
        state = 'leased' AND (cancel_reason IS NULL OR cancel_reason IN ('cancelled', 'replaced'))))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX runs_by_partition ON runs (partition, job_id);
CREATE INDEX runs_by_queue ON runs (tenant, queue, lane, due_at);
CREATE INDEX runs_by_deadline ON runs (partition, start_by) WHERE start_by IS NOT NULL;
CREATE INDEX runs_spread ON runs (partition, tenant, queue, rate_version, due_at) WHERE rate_version IS NOT NULL;

-- The one leased run of a job whose overlap is not allow. Taken by the statement that leases the run, freed by whichever
-- ends the lease.
CREATE TABLE job_slots (
    job_id uuid PRIMARY KEY,
    run_id uuid NOT NULL
);

-- Runs that were leased without their job's slot, before an edit made the job's overlap other than allow. While one of a
-- job is still leased nobody gets its slot; what is left of those that are not is dropped now and then.
CREATE TABLE slotless_runs (
    job_id uuid,
    run_id uuid,
    PRIMARY KEY (job_id, run_id)
);

CREATE TABLE dead_runs (
    run_id        uuid PRIMARY KEY,
    job_id        uuid NOT NULL,
    partition     int NOT NULL,
    tenant        text NOT NULL,
    queue         text NOT NULL,
    lane          smallint NOT NULL,
    version       int NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    lease_token   bigint NOT NULL,
    scheduled_for timestamptz NOT NULL,
    worker_id     text,
    payload       text,
    reason        text NOT NULL,
    died_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dead_runs_by_tenant ON dead_runs (tenant, died_at);
CREATE INDEX dead_runs_by_job ON dead_runs (job_id);

-- One row a transaction and kind of event, its events side by side in arrays of equal length: a tenth of the WAL of a
-- row each. A NULL array means that the event has no such field. The relay publishes rows in id order and deletes them.
CREATE TABLE outbox (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event            text NOT NULL,
    at               timestamptz NOT NULL DEFAULT now(),
    job_ids          uuid[] NOT NULL,
    run_ids          uuid[],
    partitions       int[] NOT NULL,
    tenants          text[] NOT NULL,
    queues           text[] NOT NULL,
    lanes            smallint[] NOT NULL,
    versions         int[] NOT NULL,
    attempts         smallint[],
    lease_tokens     bigint[],
    scheduled_for    timestamptz[],
    due_at           timestamptz[],
    lease_expires_at timestamptz[],
    worker_ids       text[],
    reasons          text[],
    results          text[],
    definitions      text[],
    counts           bigint[],
    gated            boolean[]
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Who changed what, by the transaction that did it: see ledger/audits.py. Its rows are as those of the outbox.
CREATE TABLE audit_outbox (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT now(),
    partition int NOT NULL,                        -- of the topic
    actions   text[] NOT NULL,
    tenants   text[] NOT NULL,
    actors    text[] NOT NULL,                     -- tokens' ids, or postgres: and a user
    subjects  text[] NOT NULL,
    details   text[] NOT NULL
);

-- What became of each command: makes a second delivery under the same id a no-op, and answers the HTTP caller who waits.
CREATE TABLE applied_commands (
    command_id uuid PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now(),
    outcome    text NOT NULL,                      -- applied, unchanged, or a rejection's code
    detail     text,                               -- a rejection's message
    field      text,
    partition  int                                 -- it moves along with it; NULL: of a time when nobody noted it
);
CREATE INDEX applied_commands_by_age ON applied_commands (applied_at);

-- Tenants whose commands were applied before others' that are in front of them in the topic: of these everything below
-- next_offset is applied, of all others everything below the partition's consumed_offset.
CREATE TABLE commands_ahead (
    partition   int NOT NULL,
    tenant      text NOT NULL,
    next_offset bigint NOT NULL,
    PRIMARY KEY (partition, tenant)
) WITH (fillfactor = 50);

-- What a command that an HTTP caller named with a key was sent with: the same key with another body is a mistake.
CREATE TABLE keyed_commands (
    command_id uuid PRIMARY KEY,
    digest     bytea NOT NULL,
    at         timestamptz NOT NULL DEFAULT now(),
    partition  int                                 -- as of an outcome
);
CREATE INDEX keyed_commands_by_age ON keyed_commands (at);

-- What a lease call got, for a short while: the same request id gets the same runs again.
CREATE TABLE lease_requests (
    request_id uuid PRIMARY KEY,
    run_ids    uuid[] NOT NULL,
    lease_tokens bigint[] NOT NULL,
    at         timestamptz NOT NULL DEFAULT now()
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

-- What operators have set of a queue; a queue without a row has no setting.
CREATE TABLE queue_settings (
    tenant         text NOT NULL,
    queue          text NOT NULL,
    rate_per_s     float8 CONSTRAINT queue_settings_rate CHECK (rate_per_s > 0 AND rate_per_s <= 1000000), -- NULL: none
    rate_version   int NOT NULL DEFAULT 0,         -- grows when the rate changes
    spread_through timestamptz,                    -- the instants before it that are apart by the rate are taken
    set_at         timestamptz NOT NULL DEFAULT now(),
    set_by         text NOT NULL,                  -- the token's id
    PRIMARY KEY (tenant, queue)
);

-- What administrators have set of a tenant, told to every shard; a tenant without a row has no limit.
CREATE TABLE tenant_limits (
    tenant       text PRIMARY KEY,
    leases_per_s float8 CONSTRAINT tenant_limits_leases CHECK (leases_per_s > 0 AND leases_per_s <= 1000000), -- NULL: any
    lease_burst  int CONSTRAINT tenant_limits_burst CHECK (lease_burst > 0), -- NULL: those of a second
    max_pending  int CONSTRAINT tenant_limits_pending CHECK (max_pending > 0), -- from how many on no job is created; NULL: any
    set_at       timestamptz NOT NULL DEFAULT now(),
    set_by       text NOT NULL,                    -- the token's id
    weight       int CONSTRAINT tenant_limits_weight CHECK (weight BETWEEN 1 AND 1000) -- of its share; NULL: 1
);

-- What operators have set of how many runs are leased at once, told to every shard: the statement that leases a run of
-- such a queue wants a permit for it. A queue without a row has no limit.
CREATE TABLE live_limits (
    tenant           text NOT NULL,
    queue            text NOT NULL,
    max_live         int CONSTRAINT live_limits_queue CHECK (max_live > 0),         -- over all of the queue; NULL: any
    max_live_per_key int CONSTRAINT live_limits_key CHECK (max_live_per_key > 0),   -- with one concurrency key; NULL: any
    counted          boolean NOT NULL DEFAULT false, -- home's word: what was leased before has its permit; none is given until then
    set_at           timestamptz NOT NULL DEFAULT now(),
    set_by           text NOT NULL,                -- the token's id
    PRIMARY KEY (tenant, queue)
);

-- Home alone: the runs of limited queues that are leased, are about to be, or were until a moment ago. See ledger/permits.py.
CREATE TABLE permits (
    run_id          uuid PRIMARY KEY,
    permit          bigint GENERATED ALWAYS AS IDENTITY, -- of the runs that had one after the other, each has a larger one
    tenant          text NOT NULL,
    queue           text NOT NULL,
    concurrency_key text,
    taken_at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX permits_by_queue ON permits (tenant, queue, concurrency_key);

-- Home alone: the API processes that share out what tenants may lease, while there is such a limit.
CREATE TABLE api_instances (
    instance uuid PRIMARY KEY,                     -- never reused: a restarted process is another one
    seen_at  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Who took a partition over when: for telling why a run waited, and whether events tell all since an owner's epoch.
CREATE TABLE takeovers (
    partition       int NOT NULL,
    epoch           bigint NOT NULL,
    owner           text NOT NULL,
    at              timestamptz NOT NULL DEFAULT now(),
    decided_through timestamptz NOT NULL,          -- how far the owner before had come: the last sign of it
    PRIMARY KEY (partition, epoch)
);

-- What each tzdata says of each zone, kept by the first owner that runs it: another one tells by it what it changes.
CREATE TABLE zone_rules (
    tzdata_version text,
    zone           text,
    tzif           bytea NOT NULL,                 -- RFC 9636
    PRIMARY KEY (tzdata_version, zone)
);

-- Home's word on moves of partitions between shards, the last one of each; see ARCHITECTURE, Moving a partition.
--
--  copying ----> cutting ----> moved ----> done      the source has it up to and in `cutting`, the target from `moved` on
--     |             |
--     +-------------+----> returning ----> returned
CREATE TABLE moves (
    partition  int PRIMARY KEY REFERENCES placements,
    from_shard int NOT NULL REFERENCES shards,
    to_shard   int NOT NULL REFERENCES shards,
    state      text NOT NULL CHECK (state IN ('copying', 'cutting', 'moved', 'done', 'returning', 'returned')),
    mover      uuid NOT NULL,                      -- who works on it; whoever takes it up is another one
    epoch      bigint,                             -- the partition's when it was cut over; the next takeover is above it
    began_at   timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    CHECK (from_shard <> to_shard)
);

-- On the shard that a partition is leaving. With an epoch: the row of `partitions` is here instead of there, so that the
-- fence refuses everybody. mover: nobody else may go on with it, here and in arrivals.
CREATE TABLE departures (
    partition       int PRIMARY KEY,
    mover           uuid NOT NULL,
    epoch           bigint,
    owner           text,
    owner_since     timestamptz,
    consumed_offset bigint,
    decided_through timestamptz,
    token_floor     bigint
);

-- On the shard that a partition is coming to. Rows of a partition that is not in `partitions` are not there yet, or not
-- any more: who looks for rows of all partitions leaves them out.
CREATE TABLE arrivals (
    partition int PRIMARY KEY,
    mover     uuid NOT NULL
);

-- Rows of a departing partition that have changed since copying began. Triggers that are there only meanwhile write it.
CREATE TABLE moving_rows (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition int NOT NULL,
    relation  text NOT NULL,
    row_id    uuid NOT NULL
);

CREATE FUNCTION note_moving_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed record;
    id uuid;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
    IF TG_TABLE_NAME = 'jobs' THEN id := changed.job_id; ELSE id := changed.run_id; END IF;
    INSERT INTO moving_rows (partition, relation, row_id) VALUES (changed.partition, TG_TABLE_NAME, id);
    RETURN NULL;
END $$;

-- As schemas/ids.py: partition_of_run.
CREATE FUNCTION partition_of_run(run_id uuid) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT (get_byte(uuid_send(run_id), 6) & 15) << 8 | get_byte(uuid_send(run_id), 7)';

-- The class of our advisory locks on partitions.
CREATE FUNCTION fence_class() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1179602500';

-- Whoever writes to the outbox wakes the relay, if it sleeps: it does so holding this lock, and looks once more when it has
-- it, so that it misses nobody. While it is awake nobody notifies: commits that do take turns.
CREATE FUNCTION wake_relay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(fence_class(), -2) THEN
        NOTIFY fencepost_outbox;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER outbox_wakes_relay AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION wake_relay();
CREATE TRIGGER audit_wakes_relay AFTER INSERT ON audit_outbox FOR EACH STATEMENT EXECUTE FUNCTION wake_relay();

-- Proves that (partition, epoch, owner) is current and keeps it so until the transaction ends; else raises FP001, or FP002
-- with the partition's number when it is not on this shard.
-- VOLATILE, under READ COMMITTED: the read is a later snapshot than the lock. In one statement, a STABLE function or
-- REPEATABLE READ it returned the OLD epoch. FOR SHARE instead would starve takeover.
CREATE FUNCTION fence_owner(p int, e bigint, o text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_epoch bigint;
    found_owner text;
    found_offset bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(fence_class(), p);
    SELECT epoch, owner, consumed_offset INTO found_epoch, found_owner, found_offset FROM partitions WHERE partition = p;
    IF found_epoch IS NULL THEN
        RAISE EXCEPTION 'not on this shard: partition %', p USING ERRCODE = 'FP002', DETAIL = p;
    END IF;
    IF found_epoch IS DISTINCT FROM e OR found_owner IS DISTINCT FROM o THEN
        RAISE EXCEPTION 'epoch lost: partition % is at epoch % of %', p, found_epoch, found_owner
            USING ERRCODE = 'FP001';
    END IF;
    RETURN found_offset;
END $$;

-- Keeps the epochs of these partitions (ascending, no duplicates) as they are until the transaction ends, for writers
-- that own none of them; raises FP002, with the numbers of those that are not on this shard. Later statements see those
-- epochs.
CREATE FUNCTION fence_partitions(ps int[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    p int;
    missing int[];
BEGIN
    FOREACH p IN ARRAY ps LOOP
        PERFORM pg_advisory_xact_lock_shared(fence_class(), p);
    END LOOP;
    IF (SELECT count(*) FROM partitions WHERE partition = ANY (ps)) <> cardinality(ps) THEN
        missing := ARRAY(SELECT unnest(ps) EXCEPT SELECT partition FROM partitions);
        RAISE EXCEPTION 'not on this shard: partitions %', missing
            USING ERRCODE = 'FP002', DETAIL = array_to_string(missing, ' ');
    END IF;
END $$;

-- Makes o the owner of p under a new epoch, once every transaction under the old one has ended.
CREATE FUNCTION take_over(p int, o text)
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
