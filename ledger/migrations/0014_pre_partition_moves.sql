-- Partitions move between shards while traffic runs. Old processes go on; they do not follow the map, so replace them first.

-- What an outcome or a key belongs to, so that it moves along; of rows from before nobody knows, and they go with any.
ALTER TABLE applied_commands ADD COLUMN partition int;
ALTER TABLE keyed_commands ADD COLUMN partition int;

CREATE TABLE moves (
    partition  int PRIMARY KEY REFERENCES placements,
    from_shard int NOT NULL REFERENCES shards,
    to_shard   int NOT NULL REFERENCES shards,
    state      text NOT NULL CHECK (state IN ('copying', 'cutting', 'moved', 'done', 'returning', 'returned')),
    mover      uuid NOT NULL,
    epoch      bigint,
    began_at   timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    CHECK (from_shard <> to_shard)
);

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

CREATE TABLE arrivals (
    partition int PRIMARY KEY,
    mover     uuid NOT NULL
);

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

CREATE FUNCTION partition_of_run(run_id uuid) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT (get_byte(uuid_send(run_id), 6) & 15) << 8 | get_byte(uuid_send(run_id), 7)';

-- As before, but a partition that is not on this shard is told from one that has another owner: FP002 names it.
CREATE OR REPLACE FUNCTION fence_owner(p int, e bigint, o text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
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

CREATE OR REPLACE FUNCTION fence_partitions(ps int[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
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
