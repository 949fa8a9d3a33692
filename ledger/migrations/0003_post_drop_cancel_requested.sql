-- cancel_reason has taken its place.
ALTER TABLE runs DROP cancel_requested;
