-- Runs that were leased without their job's slot, before an edit made the job's overlap other than allow.
CREATE TABLE slotless_runs (
    job_id uuid,
    run_id uuid,
    PRIMARY KEY (job_id, run_id)
);
