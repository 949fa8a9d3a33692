-- A tenant's jobs in the order of their ids, page by page, however many other tenants there are.
CREATE INDEX jobs_by_tenant ON jobs (tenant, job_id);
