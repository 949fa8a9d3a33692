-- Tokens that end by themselves, or give way to another one. Code of before takes one for in force until it is revoked.
ALTER TABLE tokens ADD expires_at timestamptz, ADD replaced_by text;
