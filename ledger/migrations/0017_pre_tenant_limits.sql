-- What a tenant may use at most, and which API processes share it.
CREATE TABLE tenant_limits (
    tenant       text PRIMARY KEY,
    leases_per_s float8 CONSTRAINT tenant_limits_leases CHECK (leases_per_s > 0 AND leases_per_s <= 1000000),
    lease_burst  int CONSTRAINT tenant_limits_burst CHECK (lease_burst > 0),
    max_pending  int CONSTRAINT tenant_limits_pending CHECK (max_pending > 0),
    set_at       timestamptz NOT NULL DEFAULT now(),
    set_by       text NOT NULL
);

CREATE TABLE api_instances (
    instance uuid PRIMARY KEY,
    seen_at  timestamptz NOT NULL
) WITH (fillfactor = 50);
