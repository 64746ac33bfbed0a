-- What an operator says of a queue: how many run at once, how fast its retries come, whose turn it is.
--
-- In a fair queue every tenant has lanes of its own, and where workers have a pool of slots for each priority every priority:
-- a name of kind 5, tenant:lane:priority, with the lane that the run would have otherwise; 0 is any tenant, any priority.
-- What came before, or in another way than by a submit, is moved to its lane by those who claim.

CREATE TABLE queue_policy (
    queue    integer PRIMARY KEY,
    policy   bytea NOT NULL,
    -- A claim must look at it. Whoever claims locks the row, so that those of one queue come one after the other.
    closely  boolean NOT NULL,
    fair     boolean NOT NULL,
    -- There are workers with a pool of slots for each priority.
    pooled   boolean NOT NULL DEFAULT false,
    -- There may be lanes of kind 5: it is fair or pooled, or was fair.
    laned    boolean NOT NULL DEFAULT false,
    -- There may be runs that take more than one slot.
    weighted boolean NOT NULL DEFAULT false,
    -- The clock of its turns: the highest tag that was served.
    clock    bigint NOT NULL DEFAULT 0,
    -- Its budget of retries, if it has one.
    retries  bigint,
    per      bigint
) WITH (fillfactor = 50);

-- Whose turn it is: of tenants that are ahead of the clock. The others have none.
CREATE TABLE queue_turn (
    queue  integer NOT NULL,
    tenant integer NOT NULL,
    tag    bigint NOT NULL,
    PRIMARY KEY (queue, tenant)
) WITH (fillfactor = 50);
CREATE POLICY of_tenant ON queue_turn FOR SELECT
USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE queue_turn ENABLE ROW LEVEL SECURITY;

-- How many retries come in a period, of queues with a budget. next: one that is full says where to look on.
CREATE TABLE queue_retry (
    queue  integer NOT NULL,
    period bigint NOT NULL,
    come   bigint NOT NULL,
    next   bigint,
    PRIMARY KEY (queue, period)
) WITH (fillfactor = 70);

-- A run goes to wait for its next attempt. With a budget its due time is moved to the first period with room.
CREATE FUNCTION pace_retry() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    budget record;
    wanted bigint;
    place  bigint;
    n      bigint;
    on_to  bigint;
BEGIN
    SELECT q.retries, q.per INTO budget FROM queue_policy q WHERE q.queue = NEW.queue AND q.retries IS NOT NULL;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    -- One after the other: periods are not locked in the order of their numbers.
    PERFORM pg_advisory_xact_lock(hashtext('queue_retry'), NEW.queue);
    wanted := NEW.due / budget.per;
    place := wanted;
    LOOP
        INSERT INTO queue_retry AS r (queue, period, come) VALUES (NEW.queue, place, 1)
        ON CONFLICT (queue, period) DO UPDATE SET come = r.come + 1 WHERE r.come < budget.retries
        RETURNING come INTO n;
        EXIT WHEN FOUND;
        SELECT coalesce(r.next, place + 1) INTO on_to FROM queue_retry r WHERE r.queue = NEW.queue AND r.period = place;
        place := on_to;
    END LOOP;
    IF place > wanted THEN
        NEW.due := place * budget.per + (n - 1) * budget.per / budget.retries;
        UPDATE queue_retry SET next = place WHERE queue = NEW.queue AND period = wanted;
    END IF;
    IF n = 1 THEN
        DELETE FROM queue_retry WHERE queue = NEW.queue AND period < now_us() / budget.per - 1;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER pace_retry BEFORE INSERT ON waiting FOR EACH ROW WHEN (NEW.state = 1 AND NEW.late AND NEW.fence > 0)
    EXECUTE FUNCTION pace_retry();

-- Of a worker with slots for each priority: those that it takes.
ALTER TABLE session ADD COLUMN priorities smallint[] NOT NULL DEFAULT '{}';
