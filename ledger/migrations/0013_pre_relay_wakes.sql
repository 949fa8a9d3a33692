-- The relay sleeps until somebody writes to the outbox. One that looks by itself, as before, goes on undisturbed.

-- Whoever writes to the outbox wakes the relay, if it sleeps: it does so holding this lock, and looks once more when it has
-- it, so that it misses nobody. While it is awake nobody notifies: commits that do take turns.
CREATE FUNCTION wake_relay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(fence_class(), -2) THEN
        NOTIFY fencepost_outbox;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER outbox_wakes_relay AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION wake_relay();
