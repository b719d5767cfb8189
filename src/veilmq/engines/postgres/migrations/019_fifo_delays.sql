-- A message of a FIFO queue without a delay of its own is due so long after its sending as its queue's delay is at present: its
-- visible_at is its sent_at until it is received. One that no delay hides, whatever the queue's is, is visible 1 ms before that.

-- delay: of the queue, in ms. Groups that give their next message between the other two may be filed by another delay.
ALTER TABLE mq.part ADD COLUMN delay bigint NOT NULL DEFAULT 0, ADD COLUMN late_from bigint NOT NULL DEFAULT 0,
    ADD COLUMN late_until bigint NOT NULL DEFAULT 0;

-- From when on a message is visible.
CREATE FUNCTION mq.due(p_visible_at bigint, p_sent_at bigint, p_receives int, p_delay bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT p_visible_at + CASE WHEN p_receives = 0 AND p_visible_at = p_sent_at THEN p_delay ELSE 0 END $$;

-- Tells the partition of a FIFO queue of the queue's delay; settings that cannot be read change nothing.
CREATE FUNCTION mq.fifo_delay() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_settings json;
    v_delay bigint;
    v_now bigint := mq.now_ms();
BEGIN
    v_settings := convert_from(NEW.settings, 'UTF8')::json;
    v_delay := coalesce((v_settings ->> 'delay_s')::bigint, 0) * 1000;
    UPDATE mq.part SET
        delay = v_delay,
        late_from = least(CASE WHEN late_until > v_now THEN late_from END, v_now + least(0, delay - v_delay)),
        late_until = greatest(late_until, v_now + delay)
    WHERE qp = NEW.qp AND delay <> v_delay AND (v_settings ->> 'fifo')::boolean;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;
CREATE TRIGGER queue_delayed AFTER INSERT OR UPDATE ON mq.queue FOR EACH ROW EXECUTE FUNCTION mq.fifo_delay();
UPDATE mq.queue SET qp = qp;

-- Settles up to p_count groups behind one that were filed by another delay; tells of the last one where there may be more.
CREATE FUNCTION mq.fifo_settle_late(p_qp bigint, p_retention bigint, p_at bigint, p_head bigint, p_count int)
RETURNS TABLE (eligible_at bigint, head bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_groups text[] := '{}';
    each record;
BEGIN
    FOR each IN SELECT of_group.group_id, of_group.eligible_at, of_group.head
        FROM mq.part JOIN mq.fifo_group AS of_group ON of_group.qp = part.qp
        WHERE part.qp = p_qp AND of_group.qp = p_qp AND (of_group.eligible_at, of_group.head) > (p_at, p_head)
            AND of_group.eligible_at BETWEEN part.late_from AND part.late_until AND of_group.leased = '{}'
        ORDER BY of_group.eligible_at, of_group.head LIMIT p_count FOR UPDATE OF of_group SKIP LOCKED
    LOOP
        v_groups := v_groups || each.group_id;
        PERFORM mq.fifo_settle(p_qp, each.group_id, p_retention);
    END LOOP;
    IF cardinality(v_groups) = p_count THEN
        RETURN QUERY SELECT each.eligible_at, each.head;
    END IF;
END $$;

DO $do$
DECLARE
    v_delay constant text := E'\n    v_delay bigint := coalesce((SELECT delay FROM mq.part WHERE qp = p_qp), 0);';
    v_now constant text := 'v_now bigint := mq.now_ms();';
    v_hidden constant text := 'CONTINUE WHEN each.visible_at > v_now AND each.receive_count = 0;';
    v_waits constant text :=
        'CONTINUE WHEN each.receive_count = 0 AND mq.due(each.visible_at, each.sent_at, 0, v_delay) > v_now;';
    v_text text;
    change record;
BEGIN
    FOR change IN SELECT * FROM (VALUES
        ('fifo_send', 'v_lock bigint;', 'v_lock bigint;' || v_delay),
        ('fifo_send', 'v_now + p_delays[place];', 'v_now + greatest(coalesce(p_delays[place], v_delay), 0);'),
        ('fifo_send', 'VALUES (p_qp, o_seq, o_visible_at, v_now,',
            'VALUES (p_qp, o_seq, v_now + coalesce(p_delays[place], 0), v_now,'),
        ('fifo_settle', v_now, v_now || v_delay),
        ('fifo_settle', 'FOR each IN SELECT seq, visible_at FROM mq.fifo_msg',
            'FOR each IN SELECT seq, mq.due(visible_at, sent_at, receive_count, v_delay) AS visible_at FROM mq.fifo_msg'),
        ('fifo_receive', v_now, v_now || v_delay),
        ('fifo_receive', v_hidden, v_waits),
        ('fifo_bind', v_now, v_now || v_delay),
        ('fifo_bind', 'SELECT seq, visible_at, receive_count FROM', 'SELECT seq, visible_at, sent_at, receive_count FROM'),
        ('fifo_bind', v_hidden, v_waits),
        ('fifo_move', 'p_target, v_seq, v_now, v_now,', 'p_target, v_seq, v_now - 1, v_now,'),
        ('fifo_move_on', '(p_target, v_seq, v_now, v_now,', '(p_target, v_seq, v_now - 1, v_now,'),
        ('fifo_arrive', 'v_now + (each.item ->> ''waits'')::bigint', 'v_now + coalesce(nullif((each.item ->> ''waits'')::bigint, 0), -1)'),
        ('fifo_change', 'SET visible_at = found.until,',
            'SET visible_at = found.until - (msg.receive_count = 0 AND found.until = msg.sent_at)::int,')
    ) AS change (name, was, is_now)
    LOOP
        SELECT pg_get_functiondef(oid) INTO STRICT v_text FROM pg_proc
        WHERE pronamespace = 'mq'::regnamespace AND proname = change.name;
        ASSERT position(change.was IN v_text) > 0, change.name || ' has changed: ' || change.was;
        EXECUTE replace(v_text, change.was, change.is_now);
    END LOOP;
END $do$;
