-- After a backup is restored lease tokens go on above all that may have been given since it was made.
ALTER TABLE partitions ADD token_floor bigint NOT NULL DEFAULT 0;
