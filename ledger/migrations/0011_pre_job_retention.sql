-- Jobs that are over are forgotten: found by their age, without a look at the others. No move of a cursor changes any
-- column of the index.
CREATE INDEX jobs_over ON jobs (partition, created_at, job_id)
    WHERE state = 'deleted' OR definition::jsonb -> 'schedule' ?| ARRAY['runAt', 'delaySeconds'];
CREATE INDEX dead_runs_by_job ON dead_runs (job_id);
