-- The event log: what became of receipts, written with the change that ended each, and numbered later.
--
-- A message in a logged queue has in log what an event will say of its receipt (engines/held.py); null where it is not logged.
-- Events wait in mq.event until a node takes some of them away, numbers them and stores them as a batch. So numbers are given
-- to what is committed, in an order in which no event stands before one that it follows, however late a transaction commits.

ALTER TABLE mq.msg ADD COLUMN log bigint;
ALTER TABLE mq.fifo_msg ADD COLUMN log bigint;

-- Of a retired partition of a logged queue: its name and its first partition.
ALTER TABLE mq.part ADD COLUMN log_queue text;
ALTER TABLE mq.part ADD COLUMN log_origin bigint;
CREATE INDEX part_retired ON mq.part (queue_id) WHERE retired;

-- By the first partition of the queue; in the order in which they were written.
CREATE TABLE mq.event (
    qp bigint NOT NULL,
    seq bigint NOT NULL,
    generation bigint NOT NULL,
    queue text NOT NULL,
    outcome text NOT NULL,
    closed_at bigint NOT NULL,
    received_at bigint NOT NULL,
    visible_at bigint NOT NULL,
    came_at bigint NOT NULL,
    receive_count int NOT NULL,
    log bigint NOT NULL,
    group_hash bigint,
    size int NOT NULL,
    id bytea NOT NULL,
    properties bytea,
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);

-- Receipts that ended without a deletion, for the delete that may come late: the same columns, and when that was seen.
CREATE TABLE mq.expired_receipt (
    qp bigint NOT NULL,
    seq bigint NOT NULL,
    generation bigint NOT NULL,
    queue text NOT NULL,
    outcome text NOT NULL,
    closed_at bigint NOT NULL,
    received_at bigint NOT NULL,
    visible_at bigint NOT NULL,
    came_at bigint NOT NULL,
    receive_count int NOT NULL,
    log bigint NOT NULL,
    group_hash bigint,
    size int NOT NULL,
    id bytea NOT NULL,
    properties bytea,
    number bigint NOT NULL,
    seen_at bigint NOT NULL,
    PRIMARY KEY (qp, seq, generation)
);
CREATE INDEX expired_receipt_number ON mq.expired_receipt (qp, number);

-- Numbered events: how many from that number on, encoded.
CREATE TABLE mq.event_batch (
    number bigint PRIMARY KEY,
    events int NOT NULL,
    encoded bytea NOT NULL
);

-- How far numbering and export are, in one row.
CREATE TABLE mq.event_state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    recorded bigint NOT NULL DEFAULT 0,
    planned bigint NOT NULL DEFAULT 0,
    exported bigint NOT NULL DEFAULT 0,
    dropped bigint NOT NULL DEFAULT 0
);

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['mq.event', 'mq.expired_receipt', 'mq.event_batch'] LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
            autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off)', name);
    END LOOP;
END $$;

-- The events that a receipt gets when that is done to its message; none if its end is written already. (All of it is immutable,
-- so that the planner puts it in place of the call.)
CREATE FUNCTION mq.outcomes(p_how text, p_log bigint, p_is_live boolean) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_how = 'die' AND p_log & 3 = 1 THEN ARRAY['expired', 'dead_lettered']
        WHEN p_how = 'die' AND p_log > 0 THEN ARRAY['dead_lettered']
        WHEN p_log & 3 = 1 THEN CASE p_how
            WHEN 'delete' THEN CASE WHEN p_is_live THEN ARRAY['deleted'] ELSE ARRAY['expired', 'late_deleted'] END
            WHEN 'release' THEN ARRAY['nacked']
            WHEN 'supersede' THEN ARRAY['expired']
        END
    END
$$;

-- What log is after one more move of the deadline, or a release.
CREATE FUNCTION mq.log_moved(p_log bigint, p_is_released boolean) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_is_released THEN p_log | 2
        WHEN ((p_log >> 18) & 65535) = 65535 THEN p_log
        ELSE p_log + 262144
    END
$$;

-- What log is at first of the message at p_place (from 1) of p_messages that were taken together, for receives that begin and
-- end at the places in p_firsts and p_ends.
CREATE FUNCTION mq.log_begun(p_firsts int[], p_ends int[], p_place bigint, p_messages bigint, p_waited bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT 1
        | (least(least(p_ends[p_place], p_messages) - p_firsts[p_place], 255) << 2)
        | (least(p_place - 1 - p_firsts[p_place], 255) << 10)
        | (least(p_waited, 536870911) << 34)
$$;

-- What an event says of a message and its receipt. (Without its body: a row as a whole would be read from wherever it is.)
CREATE TYPE mq.receipt AS (
    seq bigint, generation bigint, received_at bigint, visible_at bigint, came_at bigint, receive_count int, log bigint,
    group_hash bigint, size int, id bytea, properties bytea
);

CREATE FUNCTION mq.receipt_of(p_msg mq.msg) RETURNS mq.receipt LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(
        p_msg.seq, p_msg.generation, p_msg.received_at, p_msg.visible_at, greatest(p_msg.sent_at, p_msg.seq >> 20),
        p_msg.receive_count, p_msg.log, p_msg.group_key, octet_length(p_msg.body), p_msg.id, p_msg.properties
    )::mq.receipt
$$;

-- The same of a FIFO queue.
CREATE FUNCTION mq.receipt_of_fifo(p_msg mq.fifo_msg) RETURNS mq.receipt LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(
        p_msg.seq, p_msg.generation, p_msg.received_at, p_msg.visible_at, p_msg.sent_at,
        p_msg.receive_count, p_msg.log, hashtextextended(p_msg.group_id, 0), octet_length(p_msg.body), p_msg.id,
        p_msg.properties
    )::mq.receipt
$$;

-- The event of a receipt in a queue of that first partition and name; where something ended the message before its deadline,
-- p_end is when.
CREATE FUNCTION mq.event_of(p_origin bigint, p_queue text, p_outcome text, p_receipt mq.receipt, p_end bigint) RETURNS TABLE (
    qp bigint, seq bigint, generation bigint, queue text, outcome text, closed_at bigint, received_at bigint,
    visible_at bigint, came_at bigint, receive_count int, log bigint, group_hash bigint, size int, id bytea, properties bytea
) LANGUAGE sql STABLE AS $$
    SELECT p_origin, p_receipt.seq, p_receipt.generation, p_queue, p_outcome,
        CASE p_outcome WHEN 'expired' THEN its.ends_at ELSE mq.now_ms() END, its.received_at, its.ends_at,
        p_receipt.came_at, p_receipt.receive_count, p_receipt.log, p_receipt.group_hash, p_receipt.size, p_receipt.id,
        p_receipt.properties
    FROM (SELECT received.at AS received_at, greatest(received.at, least(p_receipt.visible_at, p_end)) AS ends_at
        FROM (SELECT p_receipt.received_at + (p_receipt.log >> 34) AS at) AS received) AS its
$$;

-- Writes the events of messages of a FIFO queue to which something is about to be done; of those that p_retention (null: none
-- of them) has ended, the end is that.
CREATE FUNCTION mq.fifo_note(p_qp bigint, p_origin bigint, p_queue text, p_how text, p_seqs bigint[], p_retention bigint)
RETURNS void LANGUAGE sql AS $$
    WITH noted AS (
        INSERT INTO mq.event
        SELECT event.* FROM mq.fifo_msg AS msg,
            unnest(mq.outcomes(p_how, msg.log, msg.visible_at > mq.now_ms())) AS outcome,
            mq.event_of(p_origin, p_queue, outcome, mq.receipt_of_fifo(msg), msg.sent_at + p_retention) AS event
        WHERE msg.qp = p_qp AND msg.seq = ANY(p_seqs)
        ORDER BY array_position(p_seqs, msg.seq), event.outcome <> 'expired'
        RETURNING *
    )
    INSERT INTO mq.expired_receipt
    SELECT *, mq.now_ms() FROM noted WHERE outcome = 'expired' AND p_how <> 'delete'
    ON CONFLICT DO NOTHING
$$;

DROP FUNCTION mq.fifo_receive(bigint, int, bigint, bigint, bigint, bigint, bigint, bigint, int, bigint, text, bigint);

-- Gives up to p_count messages of groups that have none in flight, each group as many as it can. Where the queue is logged,
-- p_log is its name.
CREATE FUNCTION mq.fifo_receive(
    p_qp bigint, p_count int, p_timeout bigint, p_generation bigint, p_low bigint, p_retention bigint,
    p_requested bigint, p_last bigint, p_receives_max int, p_dead bigint, p_source text, p_counter bigint,
    p_origin bigint, p_log text
) RETURNS TABLE (
    seq bigint, id bytea, body text, properties bytea, sent_at bigint, first_received_at bigint, receive_count int,
    receives_before int, visible_at bigint, generation bigint, epoch bigint, source text, now bigint, turn int
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_left int := p_count;
    v_moved int := 0;
    v_group text;
    v_done text[] := '{}';
    v_chosen bigint[];
    v_given bigint[] := '{}';
    v_waited bigint := least(v_now - coalesce(p_requested, v_now), 536870911);
    each record;
BEGIN
    WHILE v_left > 0 LOOP
        SELECT group_id INTO v_group FROM mq.fifo_group
        WHERE qp = p_qp AND eligible_at >= p_low AND eligible_at <= v_now AND group_id <> ALL(v_done)
        ORDER BY eligible_at, head LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        v_done := v_done || v_group;
        IF p_log IS NOT NULL THEN
            PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'supersede', ARRAY(
                SELECT seq FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group AND sent_at <= v_now - p_retention
                    AND seq < ((v_now - p_retention + 1) << 20)
            ), p_retention);
        END IF;
        DELETE FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group AND sent_at <= v_now - p_retention
            AND seq < ((v_now - p_retention + 1) << 20);
        v_chosen := '{}';
        FOR each IN SELECT * FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group ORDER BY seq LOOP
            CONTINUE WHEN each.visible_at > v_now AND each.receive_count = 0;
            EXIT WHEN each.visible_at > v_now;
            IF p_dead IS NOT NULL AND each.receive_count >= p_receives_max THEN
                IF p_log IS NOT NULL THEN
                    PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'die', ARRAY[each.seq], NULL);
                END IF;
                PERFORM mq.fifo_move(p_qp, each.seq, p_dead, p_source, p_counter + v_moved);
                v_moved := v_moved + 1;
                CONTINUE;
            END IF;
            v_chosen := v_chosen || each.seq;
            EXIT WHEN cardinality(v_chosen) = v_left;
        END LOOP;
        IF p_log IS NOT NULL THEN
            PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'supersede', v_chosen, NULL);
        END IF;
        RETURN QUERY UPDATE mq.fifo_msg AS msg SET
            visible_at = least(v_now + p_timeout, p_last),
            receive_count = msg.receive_count + 1,
            first_received_at = coalesce(msg.first_received_at, v_now),
            received_at = coalesce(p_requested, v_now),
            generation = p_generation,
            epoch = msg.epoch + 1,
            log = CASE WHEN p_log IS NOT NULL THEN 1 | (v_waited << 34)
                | (least(cardinality(v_given) + array_position(v_chosen, msg.seq) - 1, 255)::bigint << 10) END
        WHERE msg.qp = p_qp AND msg.seq = ANY(v_chosen)
        RETURNING msg.seq, msg.id, msg.body, msg.properties, msg.sent_at, msg.first_received_at, msg.receive_count,
            msg.receives_before, msg.visible_at, msg.generation, msg.epoch, msg.source, v_now, array_position(v_done, v_group);
        v_left := v_left - cardinality(v_chosen);
        v_given := v_given || v_chosen;
        UPDATE mq.fifo_group SET leased = v_chosen WHERE qp = p_qp AND group_id = v_group;
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
    IF p_log IS NOT NULL THEN
        UPDATE mq.fifo_msg AS msg SET log = msg.log | (least(cardinality(v_given), 255)::bigint << 2)
        WHERE msg.qp = p_qp AND msg.seq = ANY(v_given);
    END IF;
    IF v_moved > 0 THEN
        RETURN QUERY SELECT NULL::bigint, NULL::bytea, NULL, NULL::bytea, NULL::bigint, NULL::bigint, NULL::int, NULL::int,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL, v_now, v_moved;
    END IF;
END $$;

DROP FUNCTION mq.fifo_delete(bigint, bigint[], bigint[], bigint[], boolean[], bigint);

CREATE FUNCTION mq.fifo_delete(
    p_qp bigint, p_seqs bigint[], p_generations bigint[], p_epochs bigint[], p_any_epoch boolean[], p_retention bigint,
    p_origin bigint, p_log text
) RETURNS TABLE (seq bigint, is_current boolean, visible_at bigint, now bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_group text;
BEGIN
    IF p_log IS NOT NULL THEN
        PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'delete', ARRAY(
            SELECT msg.seq FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch) AS asked (seq, generation, epoch, any_epoch)
                JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq
            WHERE msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch)
                AND msg.visible_at > v_now AND msg.sent_at > v_now - p_retention
        ), NULL);
    END IF;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT msg.seq, msg.visible_at,
            msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch) AS is_current
        FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch) AS asked (seq, generation, epoch, any_epoch)
            JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq
                AND msg.sent_at > v_now - p_retention
    ), deleted AS (
        DELETE FROM mq.fifo_msg AS msg USING found
        WHERE msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = found.seq AND found.is_current AND found.visible_at > v_now
    )
    SELECT found.seq, found.is_current, found.visible_at, v_now FROM found;
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;

DROP FUNCTION mq.fifo_change(bigint, bigint[], bigint[], bigint[], boolean[], bigint[], bigint[], boolean[], bigint);

CREATE FUNCTION mq.fifo_change(
    p_qp bigint, p_seqs bigint[], p_generations bigint[], p_epochs bigint[], p_any_epoch boolean[],
    p_timeouts bigint[], p_lease_max bigint[], p_renew boolean[], p_retention bigint,
    p_origin bigint, p_log text
) RETURNS TABLE (
    seq bigint, is_current boolean, visible_at bigint, now bigint, until bigint, is_short boolean, epoch bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_group text;
BEGIN
    IF p_log IS NOT NULL THEN
        PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'release', ARRAY(
            SELECT msg.seq FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch, p_timeouts)
                    AS asked (seq, generation, epoch, any_epoch, timeout)
                JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq
            WHERE msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch)
                AND msg.visible_at > v_now AND msg.sent_at > v_now - p_retention AND asked.timeout = 0
        ), NULL);
    END IF;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT msg.seq, msg.visible_at, v_now + asked.timeout AS until, msg.epoch + asked.renew::int AS epoch,
            msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch) AS is_current,
            asked.timeout = 0 OR msg.receive_count = 0 AND asked.timeout <= asked.lease_max OR asked.lease_max IS NULL
                OR v_now + asked.timeout <= msg.received_at + asked.lease_max AS is_short
        FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch, p_timeouts, p_lease_max, p_renew)
                AS asked (seq, generation, epoch, any_epoch, timeout, lease_max, renew)
            JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq
                AND msg.sent_at > v_now - p_retention
    ), changed AS (
        UPDATE mq.fifo_msg AS msg SET visible_at = found.until, epoch = found.epoch,
            log = CASE WHEN p_log IS NULL THEN msg.log ELSE mq.log_moved(msg.log, found.until <= v_now) END
        FROM found
        WHERE msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = found.seq AND found.is_current AND found.visible_at > v_now AND found.is_short
    )
    SELECT found.seq, found.is_current, found.visible_at, v_now, found.until, found.is_short, found.epoch FROM found;
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;

DROP FUNCTION mq.fifo_bind(bigint, bigint, int, int, int, int, bigint, bigint, int, bigint, text, bigint, int);

-- Binds up to p_count messages to a claim, of groups that have none in flight, of each as many as it can give. All of a group
-- are in one shard, of p_shards, or, where that is 0, of as many as p_wanted messages need, p_shard_messages each. No more
-- than p_letters_max dead letters leave.
CREATE FUNCTION mq.fifo_bind(
    p_qp bigint, p_claim bigint, p_count int, p_wanted int, p_shards int, p_shard_messages int, p_generation bigint,
    p_retention bigint, p_receives_max int, p_dead bigint, p_source text, p_counter bigint, p_letters_max int,
    p_origin bigint, p_log text
) RETURNS TABLE (messages int, shards int, letters int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_group text;
    v_seqs bigint[] := '{}';
    v_chosen bigint[];
    v_shards int := p_shards;
    v_letters int := 0;
    each record;
BEGIN
    FOR v_group IN SELECT group_id FROM mq.fifo_group WHERE qp = p_qp AND eligible_at <= v_now
        ORDER BY eligible_at, head LIMIT p_count FOR UPDATE SKIP LOCKED
    LOOP
        v_chosen := '{}';
        IF p_log IS NOT NULL THEN
            PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'supersede', ARRAY(
                SELECT seq FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group AND sent_at <= v_now - p_retention
                    AND claim IS NULL AND seq < ((v_now - p_retention + 1) << 20)
            ), p_retention);
        END IF;
        DELETE FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group AND sent_at <= v_now - p_retention AND claim IS NULL
            AND seq < ((v_now - p_retention + 1) << 20);
        FOR each IN SELECT seq, visible_at, receive_count FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group ORDER BY seq
        LOOP
            CONTINUE WHEN each.visible_at > v_now AND each.receive_count = 0;
            EXIT WHEN each.visible_at > v_now;
            IF p_dead IS NOT NULL AND each.receive_count >= p_receives_max THEN
                EXIT WHEN v_letters >= p_letters_max;
                IF p_log IS NOT NULL THEN
                    PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'die', ARRAY[each.seq], NULL);
                END IF;
                PERFORM mq.fifo_move(p_qp, each.seq, p_dead, p_source, p_counter + v_letters);
                v_letters := v_letters + 1;
                CONTINUE;
            END IF;
            v_chosen := v_chosen || each.seq;
            EXIT WHEN cardinality(v_seqs) + cardinality(v_chosen) >= p_count;
        END LOOP;
        IF v_chosen = '{}' THEN
            PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
        ELSE
            UPDATE mq.fifo_group SET leased = v_chosen, eligible_at = 1::bigint << 61 WHERE qp = p_qp AND group_id = v_group;
        END IF;
        v_seqs := v_seqs || v_chosen;
        EXIT WHEN cardinality(v_seqs) >= p_count OR v_letters >= p_letters_max;
    END LOOP;
    IF v_shards = 0 THEN
        v_shards := greatest(1, ceil(
            (CASE WHEN cardinality(v_seqs) < p_count THEN cardinality(v_seqs) ELSE p_wanted END)::numeric / p_shard_messages
        )::int);
    END IF;
    IF p_log IS NOT NULL THEN
        PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'supersede', v_seqs, NULL);
    END IF;
    UPDATE mq.fifo_msg AS msg SET
        visible_at = 1::bigint << 61,
        log = NULL,
        receive_count = msg.receive_count + 1,
        first_received_at = coalesce(msg.first_received_at, v_now),
        received_at = v_now,
        generation = p_generation,
        epoch = msg.epoch + 1,
        claim = p_claim,
        shard = (hashtextextended(msg.group_id, 0) & 1073741823) % v_shards
    WHERE msg.qp = p_qp AND msg.seq = ANY(v_seqs);
    RETURN QUERY SELECT cardinality(v_seqs), v_shards, v_letters;
END $$;
