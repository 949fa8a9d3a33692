-- Runs that are too late to start are found by their deadlines, however many others wait. A lease does not change them.
CREATE INDEX runs_by_deadline ON runs (partition, start_by) WHERE start_by IS NOT NULL;
