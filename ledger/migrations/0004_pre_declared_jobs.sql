-- Jobs that files declare, found by the set that they belong to.
ALTER TABLE jobs
    ADD declared_as text GENERATED ALWAYS AS (definition::jsonb ->> 'declaredAs') STORED;

CREATE INDEX jobs_by_declaration ON jobs (tenant, split_part(declared_as, '/', 1), job_id) WHERE declared_as IS NOT NULL;
