-- Whose commands were applied before others' that are in front of them. An owner that does not know of it applies them
-- once more, as it reads them, which their ids make a no-op.
CREATE TABLE commands_ahead (
    partition   int NOT NULL,
    tenant      text NOT NULL,
    next_offset bigint NOT NULL,
    PRIMARY KEY (partition, tenant)
) WITH (fillfactor = 50);
