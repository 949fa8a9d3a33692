-- How large a tenant's share is where tenants compete.
ALTER TABLE tenant_limits ADD COLUMN weight int CONSTRAINT tenant_limits_weight CHECK (weight BETWEEN 1 AND 1000);
