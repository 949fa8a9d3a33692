-- About when a token was last used. Written once a minute by each API process that knows it, never by a call itself.
ALTER TABLE tokens ADD last_used_at timestamptz;
