-- FIFO queues: messages in groups, and a row for each group that says when it may give its next message.
--
-- Locks are taken in one order, so that no two commands wait for each other: groups of senders (advisory), then rows of
-- groups, then messages.

CREATE TABLE mq.fifo_msg (
    qp bigint NOT NULL,
    seq bigint NOT NULL,
    visible_at bigint NOT NULL,
    sent_at bigint NOT NULL,
    first_received_at bigint,
    received_at bigint NOT NULL DEFAULT 0,
    receive_count int NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    group_id text COLLATE "C" NOT NULL,
    id bytea NOT NULL,
    properties bytea,
    source text,
    receives_before int NOT NULL DEFAULT 0,
    body text NOT NULL,
    PRIMARY KEY (qp, seq)
) WITH (fillfactor = 80); -- visible_at is in no index, so that a receive changes rows in place
CREATE INDEX fifo_msg_group ON mq.fifo_msg (qp, group_id, seq);

-- leased: the positions of the last receive that are not deleted. head is the position of the message that comes next.
CREATE TABLE mq.fifo_group (
    qp bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    eligible_at bigint NOT NULL,
    head bigint NOT NULL,
    last_seq bigint NOT NULL,
    leased bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (qp, group_id)
) WITH (fillfactor = 70);
CREATE INDEX fifo_group_eligible ON mq.fifo_group (qp, eligible_at, head);

-- What was accepted lately, by the first partition of the queue: a purge lets no duplicate in.
CREATE TABLE mq.accepted (
    qp bigint NOT NULL,
    key bytea NOT NULL,
    expires_at bigint NOT NULL,
    seq bigint NOT NULL,
    id bytea NOT NULL,
    PRIMARY KEY (qp, key)
);
CREATE INDEX accepted_expires ON mq.accepted (expires_at);

-- What receives with an attempt id gave: positions and what fences them, the deadlines that their receipts say and those in
-- force. By the first partition of the queue.
CREATE TABLE mq.attempt (
    qp bigint NOT NULL,
    key bytea NOT NULL,
    attempted_at bigint NOT NULL,
    seqs bigint[] NOT NULL,
    generations bigint[] NOT NULL,
    epochs bigint[] NOT NULL,
    issued bigint[] NOT NULL,
    deadlines bigint[] NOT NULL,
    PRIMARY KEY (qp, key)
);
CREATE INDEX attempt_attempted ON mq.attempt (attempted_at);

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['mq.fifo_msg', 'mq.fifo_group', 'mq.accepted', 'mq.attempt'] LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
            autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off)', name);
    END LOOP;
END $$;

-- A position behind the group's last one that no other message has, of those that are to be seen.
CREATE FUNCTION mq.fifo_position(p_qp bigint, p_group text, p_now bigint, p_counter bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint := (p_now << 20) | (p_counter & 1048575);
    v_last bigint;
BEGIN
    SELECT last_seq INTO v_last FROM mq.fifo_group WHERE qp = p_qp AND group_id = p_group;
    IF v_last >= v_seq THEN
        v_seq := v_last + 1;
        WHILE EXISTS (SELECT FROM mq.fifo_msg WHERE qp = p_qp AND seq = v_seq) LOOP
            v_seq := v_seq + 1;
        END LOOP;
    END IF;
    RETURN v_seq;
END $$;

-- Sends in the order of the arrays; p_counter counts on from one call of a node to the next. A message without a key is
-- nobody's duplicate. Nothing is sent to a retired partition.
CREATE FUNCTION mq.fifo_send(
    p_qp bigint, p_origin bigint, p_counter bigint, p_remember bigint,
    p_groups text[], p_keys bytea[], p_ids bytea[], p_properties bytea[], p_bodies text[], p_delays bigint[]
) RETURNS TABLE (place int, o_seq bigint, o_id bytea, o_visible_at bigint, o_sent_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_lock bigint;
    v_now bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM mq.part WHERE qp = p_qp AND NOT retired) THEN
        RETURN;
    END IF;
    FOR v_lock IN SELECT DISTINCT hashtextextended(each, p_qp) FROM unnest(p_groups) AS each ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(v_lock);
    END LOOP;
    PERFORM FROM (
        SELECT DISTINCT each COLLATE "C" AS name FROM unnest(p_groups) AS each ORDER BY name
    ) AS of_message CROSS JOIN LATERAL (
        SELECT FROM mq.fifo_group WHERE qp = p_qp AND group_id = of_message.name FOR UPDATE -- one by one, in their order
    ) AS locked;
    v_now := mq.now_ms();
    FOR place IN 1..cardinality(p_groups) LOOP
        o_id := p_ids[place];
        o_sent_at := v_now;
        o_visible_at := v_now + p_delays[place];
        o_seq := mq.fifo_position(p_qp, p_groups[place], v_now, p_counter + place);
        IF p_keys[place] IS NOT NULL THEN
            INSERT INTO mq.accepted AS before (qp, key, expires_at, seq, id)
            VALUES (p_origin, p_keys[place], v_now + p_remember, o_seq, o_id)
            ON CONFLICT (qp, key) DO UPDATE
                SET expires_at = excluded.expires_at, seq = excluded.seq, id = excluded.id
                WHERE before.expires_at <= v_now OR before.id = excluded.id; -- what comes back by a forward is no duplicate
            IF NOT FOUND THEN
                SELECT accepted.seq, accepted.id INTO o_seq, o_id
                FROM mq.accepted WHERE qp = p_origin AND key = p_keys[place];
                o_visible_at := o_sent_at;
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        INSERT INTO mq.fifo_msg (qp, seq, visible_at, sent_at, group_id, id, properties, body)
        VALUES (p_qp, o_seq, o_visible_at, v_now, p_groups[place], o_id, p_properties[place], p_bodies[place]);
        INSERT INTO mq.fifo_group AS of_group (qp, group_id, eligible_at, head, last_seq)
        VALUES (p_qp, p_groups[place], o_visible_at, o_seq, o_seq)
        ON CONFLICT (qp, group_id) DO UPDATE SET
            last_seq = excluded.last_seq,
            head = CASE WHEN of_group.leased = '{}' AND excluded.eligible_at < of_group.eligible_at
                THEN excluded.head ELSE of_group.head END,
            eligible_at = CASE WHEN of_group.leased = '{}'
                THEN least(of_group.eligible_at, excluded.eligible_at) ELSE of_group.eligible_at END;
        RETURN NEXT;
    END LOOP;
END $$;

-- Says anew when a group gives its next message, whose row the caller has locked: when the last of its messages in flight is
-- visible again or ends, or, with none in flight, when the first of the others was or will be visible. Removes an empty one.
CREATE FUNCTION mq.fifo_settle(p_qp bigint, p_group text, p_retention bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_leased bigint[];
    v_until bigint;
    v_first bigint;
    v_head bigint;
    each record;
BEGIN
    SELECT array_agg(msg.seq ORDER BY msg.seq), max(least(msg.visible_at, msg.sent_at + p_retention))
    INTO v_leased, v_until
    FROM mq.fifo_group AS of_group CROSS JOIN unnest(of_group.leased) AS lease (seq)
        JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = lease.seq
    WHERE of_group.qp = p_qp AND of_group.group_id = p_group
        AND msg.visible_at > v_now AND msg.receive_count > 0 AND msg.sent_at > v_now - p_retention;
    FOR each IN SELECT seq, visible_at FROM mq.fifo_msg
        WHERE qp = p_qp AND group_id = p_group AND sent_at > v_now - p_retention ORDER BY seq
    LOOP
        CONTINUE WHEN each.seq = ANY(v_leased);
        IF v_first IS NULL OR each.visible_at < v_first THEN
            v_first := each.visible_at;
            v_head := each.seq;
        END IF;
        EXIT WHEN each.visible_at <= v_now;
    END LOOP;
    IF v_leased IS NULL AND coalesce(v_first, v_now + 1) > v_now THEN
        -- Nothing to give now: unless somebody is sending to the group, whose message is not seen yet.
        IF NOT pg_try_advisory_xact_lock(hashtextextended(p_group, p_qp)) THEN
            v_first := v_now;
        ELSIF v_first IS NULL THEN
            DELETE FROM mq.fifo_group WHERE qp = p_qp AND group_id = p_group
                AND NOT EXISTS (SELECT FROM mq.fifo_msg WHERE qp = p_qp AND group_id = p_group);
            IF FOUND THEN
                RETURN;
            END IF;
            v_first := v_now;
        END IF;
    END IF;
    UPDATE mq.fifo_group SET
        leased = coalesce(v_leased, '{}'),
        eligible_at = coalesce(v_until, v_first),
        head = coalesce(v_head, head)
    WHERE qp = p_qp AND group_id = p_group;
END $$;

-- Gives up to p_count messages of groups that have none in flight, each group as many as it can.
CREATE FUNCTION mq.fifo_receive(
    p_qp bigint, p_count int, p_timeout bigint, p_generation bigint, p_low bigint, p_retention bigint,
    p_requested bigint, p_last bigint, p_receives_max int, p_dead bigint, p_source text, p_counter bigint
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
    each record;
BEGIN
    WHILE v_left > 0 LOOP
        SELECT group_id INTO v_group FROM mq.fifo_group
        WHERE qp = p_qp AND eligible_at >= p_low AND eligible_at <= v_now AND group_id <> ALL(v_done)
        ORDER BY eligible_at, head LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        v_done := v_done || v_group;
        DELETE FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group AND sent_at <= v_now - p_retention
            AND seq < ((v_now - p_retention + 1) << 20);
        v_chosen := '{}';
        FOR each IN SELECT * FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group ORDER BY seq LOOP
            CONTINUE WHEN each.visible_at > v_now AND each.receive_count = 0;
            EXIT WHEN each.visible_at > v_now;
            IF p_dead IS NOT NULL AND each.receive_count >= p_receives_max THEN
                PERFORM mq.fifo_move(p_qp, each.seq, p_dead, p_source, p_counter + v_moved);
                v_moved := v_moved + 1;
                CONTINUE;
            END IF;
            v_chosen := v_chosen || each.seq;
            EXIT WHEN cardinality(v_chosen) = v_left;
        END LOOP;
        RETURN QUERY UPDATE mq.fifo_msg AS msg SET
            visible_at = least(v_now + p_timeout, p_last),
            receive_count = msg.receive_count + 1,
            first_received_at = coalesce(msg.first_received_at, v_now),
            received_at = coalesce(p_requested, v_now),
            generation = p_generation,
            epoch = msg.epoch + 1
        WHERE msg.qp = p_qp AND msg.seq = ANY(v_chosen)
        RETURNING msg.seq, msg.id, msg.body, msg.properties, msg.sent_at, msg.first_received_at, msg.receive_count,
            msg.receives_before, msg.visible_at, msg.generation, msg.epoch, msg.source, v_now, array_position(v_done, v_group);
        v_left := v_left - cardinality(v_chosen);
        UPDATE mq.fifo_group SET leased = v_chosen WHERE qp = p_qp AND group_id = v_group;
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
    IF v_moved > 0 THEN
        RETURN QUERY SELECT NULL::bigint, NULL::bytea, NULL, NULL::bytea, NULL::bigint, NULL::bigint, NULL::int, NULL::int,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL, v_now, v_moved;
    END IF;
END $$;

-- Sends a dead letter to another partition, where it begins anew, told apart by its id.
CREATE FUNCTION mq.fifo_move(p_qp bigint, p_seq bigint, p_target bigint, p_source text, p_counter bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_seq bigint;
    v_msg mq.fifo_msg;
BEGIN
    DELETE FROM mq.fifo_msg WHERE qp = p_qp AND seq = p_seq RETURNING * INTO v_msg;
    v_seq := mq.fifo_position(p_target, v_msg.group_id, v_now, p_counter);
    INSERT INTO mq.fifo_msg (
        qp, seq, visible_at, sent_at, first_received_at, group_id, id, properties, source, receives_before, body
    ) VALUES (
        p_target, v_seq, v_now, v_now, v_msg.first_received_at, v_msg.group_id, v_msg.id, v_msg.properties, p_source,
        v_msg.receives_before + v_msg.receive_count, v_msg.body
    );
    INSERT INTO mq.fifo_group AS of_group (qp, group_id, eligible_at, head, last_seq)
    VALUES (p_target, v_msg.group_id, v_now, v_seq, v_seq)
    ON CONFLICT (qp, group_id) DO UPDATE SET
        last_seq = excluded.last_seq,
        eligible_at = CASE WHEN of_group.leased = '{}'
            THEN least(of_group.eligible_at, excluded.eligible_at) ELSE of_group.eligible_at END;
END $$;

-- Locks the groups of those messages.
CREATE FUNCTION mq.fifo_lock(p_qp bigint, p_seqs bigint[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_groups text[];
BEGIN
    SELECT array_agg(DISTINCT group_id ORDER BY group_id) INTO v_groups
    FROM mq.fifo_msg WHERE qp = p_qp AND seq = ANY(p_seqs);
    PERFORM FROM unnest(v_groups) AS of_message (name) CROSS JOIN LATERAL (
        SELECT FROM mq.fifo_group WHERE qp = p_qp AND group_id = of_message.name FOR UPDATE -- one by one, in their order
    ) AS locked;
    RETURN coalesce(v_groups, '{}');
END $$;

CREATE FUNCTION mq.fifo_delete(
    p_qp bigint, p_seqs bigint[], p_generations bigint[], p_epochs bigint[], p_any_epoch boolean[], p_retention bigint
) RETURNS TABLE (seq bigint, is_current boolean, visible_at bigint, now bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_group text;
BEGIN
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT msg.seq, msg.visible_at,
            msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch) AS is_current
        FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch) AS asked (seq, generation, epoch, any_epoch)
            JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = asked.seq AND msg.sent_at > v_now - p_retention
    ), deleted AS (
        DELETE FROM mq.fifo_msg AS msg USING found
        WHERE msg.qp = p_qp AND msg.seq = found.seq AND found.is_current AND found.visible_at > v_now
    )
    SELECT found.seq, found.is_current, found.visible_at, v_now FROM found;
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;

CREATE FUNCTION mq.fifo_change(
    p_qp bigint, p_seqs bigint[], p_generations bigint[], p_epochs bigint[], p_any_epoch boolean[],
    p_timeouts bigint[], p_lease_max bigint[], p_renew boolean[], p_retention bigint
) RETURNS TABLE (
    seq bigint, is_current boolean, visible_at bigint, now bigint, until bigint, is_short boolean, epoch bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_group text;
BEGIN
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT msg.seq, msg.visible_at, v_now + asked.timeout AS until, msg.epoch + asked.renew::int AS epoch,
            msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch) AS is_current,
            asked.timeout = 0 OR msg.receive_count = 0 AND asked.timeout <= asked.lease_max OR asked.lease_max IS NULL
                OR v_now + asked.timeout <= msg.received_at + asked.lease_max AS is_short
        FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch, p_timeouts, p_lease_max, p_renew)
                AS asked (seq, generation, epoch, any_epoch, timeout, lease_max, renew)
            JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = asked.seq AND msg.sent_at > v_now - p_retention
    ), changed AS (
        UPDATE mq.fifo_msg AS msg SET visible_at = found.until, epoch = found.epoch
        FROM found
        WHERE msg.qp = p_qp AND msg.seq = found.seq AND found.is_current AND found.visible_at > v_now AND found.is_short
    )
    SELECT found.seq, found.is_current, found.visible_at, v_now, found.until, found.is_short, found.epoch FROM found;
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;

-- Hides the messages of an attempt anew if all of them are as they were left; gives none if one is not.
CREATE FUNCTION mq.fifo_repeat(
    p_qp bigint, p_seqs bigint[], p_generations bigint[], p_epochs bigint[], p_deadlines bigint[], p_timeout bigint,
    p_lease_max bigint, p_retention bigint
) RETURNS SETOF mq.fifo_msg LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_group text;
    v_left int;
BEGIN
    SELECT count(*) INTO v_left
    FROM unnest(p_seqs, p_generations, p_epochs, p_deadlines) AS given (seq, generation, epoch, deadline)
        JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = given.seq AND msg.generation = given.generation
            AND msg.epoch = given.epoch AND msg.visible_at = given.deadline
    WHERE msg.visible_at > v_now AND msg.sent_at > v_now - p_retention;
    IF v_left < cardinality(p_seqs) THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE mq.fifo_msg AS msg SET visible_at = least(v_now + p_timeout, msg.received_at + p_lease_max)
    WHERE msg.qp = p_qp AND msg.seq = ANY(p_seqs) RETURNING msg.*;
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;
