-- Several databases as one store: where each queue is, and what is on its way from one database to another.

-- At the first database alone, the home: the place of the database of each queue. A row is there before its queue is.
CREATE TABLE mq.shard_of (
    name text COLLATE "C" PRIMARY KEY,
    place smallint NOT NULL
);
CREATE INDEX shard_of_place ON mq.shard_of (place, name);

-- The outbox: a partition of messages for each pair of a queue here (0: a topic) and a queue at another place. What is to go
-- there comes to that partition by the same statements, in the same transactions, as it would to a queue here.
CREATE TABLE mq.outbox (
    qp bigint PRIMARY KEY,
    source_id bigint NOT NULL,
    source text COLLATE "C" NOT NULL,
    place smallint NOT NULL,
    target_id bigint NOT NULL,
    target text COLLATE "C" NOT NULL,
    -- As they were last seen there.
    settings bytea NOT NULL,
    -- The batch that is on its way: what it has is decided before it goes, and stays so until it is known to have arrived.
    number bigint NOT NULL DEFAULT 0,
    token bytea NOT NULL DEFAULT '',
    seqs bigint[] NOT NULL DEFAULT '{}',
    next_at bigint NOT NULL DEFAULT 0,
    -- When one of the two queues was found to be gone.
    ended_at bigint,
    UNIQUE (source_id, place, target_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The last batch that has arrived at a queue, named by the first partition of it, from each partition of another place's outbox.
CREATE TABLE mq.arrival (
    qp bigint NOT NULL,
    from_place smallint NOT NULL,
    from_qp bigint NOT NULL,
    number bigint NOT NULL,
    token bytea NOT NULL,
    PRIMARY KEY (qp, from_place, from_qp)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Stores messages that have come from another database, in their order: each behind its group, from now on, unless its key was
-- accepted lately for another message.
CREATE FUNCTION mq.fifo_arrive(
    p_qp bigint, p_origin bigint, p_rows jsonb, p_keys bytea[], p_remember bigint, p_counter bigint
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[];
    v_lock bigint;
    v_new mq.fifo_msg;
    each record;
BEGIN
    SELECT array_agg(DISTINCT item ->> 'group_id') INTO v_groups FROM jsonb_array_elements(p_rows) AS item;
    FOR v_lock IN SELECT DISTINCT hashtextextended(name, p_qp) FROM unnest(v_groups) AS name ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(v_lock);
    END LOOP;
    PERFORM FROM (
        SELECT DISTINCT its COLLATE "C" AS name FROM unnest(v_groups) AS its ORDER BY name
    ) AS of_message CROSS JOIN LATERAL (
        SELECT FROM mq.fifo_group WHERE qp = p_qp AND group_id = of_message.name FOR UPDATE -- one by one, in their order
    ) AS locked;
    FOR each IN SELECT item, at FROM jsonb_array_elements(p_rows) WITH ORDINALITY AS come (item, at) ORDER BY at LOOP
        v_new := jsonb_populate_record(NULL::mq.fifo_msg, each.item);
        v_new.qp := p_qp;
        v_new.seq := mq.fifo_position(p_qp, v_new.group_id, v_now, p_counter + each.at);
        v_new.sent_at := v_now;
        v_new.visible_at := v_now + (each.item ->> 'waits')::bigint;
        IF p_keys[each.at] IS NOT NULL THEN
            INSERT INTO mq.accepted AS before (qp, key, expires_at, seq, id)
            VALUES (p_origin, p_keys[each.at], v_now + p_remember, v_new.seq, v_new.id)
            ON CONFLICT (qp, key) DO UPDATE
                SET expires_at = excluded.expires_at, seq = excluded.seq, id = excluded.id
                WHERE before.expires_at <= v_now OR before.id = excluded.id;
            CONTINUE WHEN NOT FOUND;
        END IF;
        INSERT INTO mq.fifo_msg SELECT v_new.*;
        PERFORM mq.fifo_join(p_qp, v_new.group_id, v_new.seq, v_new.visible_at);
        RETURN NEXT v_new.seq;
    END LOOP;
END $$;
