-- Retention deletes only by a clock that was confirmed within the last hour: a step of the database's clock deletes nothing.

-- One row, once a node has looked at the clock: the last instant that a node confirmed, the node that doubts the clock (then
-- nobody confirms), and how often an operator trusted it.
CREATE TABLE mq.clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    confirmed_at bigint NOT NULL,
    doubted_by text,
    trusts int NOT NULL DEFAULT 0
);

-- The instant that retention is reckoned from: the present one, but at most an hour after the last one confirmed, and not after
-- that one while a node doubts the clock.
CREATE FUNCTION mq.retention_now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT least(mq.now_ms(), (SELECT confirmed_at + CASE WHEN doubted_by IS NULL THEN 3600000 ELSE 0 END FROM mq.clock)) $$;

-- The functions that delete messages past their retention, or say which of a group's messages count, reckon from it.
DO $do$
DECLARE
    v_function regprocedure;
    v_text text;
BEGIN
    FOR v_function IN SELECT oid FROM pg_proc WHERE pronamespace = 'mq'::regnamespace
        AND proname IN ('fifo_settle', 'fifo_sweep', 'fifo_receive', 'fifo_bind', 'fifo_give_back')
    LOOP
        v_text := replace(pg_get_functiondef(v_function), 'v_now - p_retention', 'v_kept');
        EXECUTE replace(v_text, 'v_now bigint := mq.now_ms();',
            E'v_now bigint := mq.now_ms();\n    v_kept bigint := mq.retention_now() - p_retention;');
    END LOOP;
END $do$;
