-- Several shards: home says which there are and which has which partition. A ledger of before is home, and has all.
CREATE TABLE shards (
    shard int PRIMARY KEY CHECK (shard >= 0),
    dsn   text,
    CHECK ((shard = 0) = (dsn IS NULL))
);
CREATE TABLE placements (
    partition int PRIMARY KEY CHECK (partition BETWEEN 0 AND 4095),
    shard     int NOT NULL REFERENCES shards
);
INSERT INTO settings (key, value) SELECT 'shard', '0' FROM settings WHERE key = 'partitions';
INSERT INTO shards (shard) SELECT 0 FROM settings WHERE key = 'partitions';
INSERT INTO placements (partition, shard) SELECT partition, 0 FROM partitions;
