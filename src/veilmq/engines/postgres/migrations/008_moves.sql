-- Move tasks: a row each, whose lock is the right to do its next slice.
CREATE TABLE mq.move (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id bytea NOT NULL,
    queue_id bigint NOT NULL,
    source text COLLATE "C" NOT NULL,
    destination text COLLATE "C",
    moves_per_s_max int,
    status text NOT NULL,
    moved bigint NOT NULL DEFAULT 0,
    to_move bigint NOT NULL,
    started_at bigint NOT NULL,
    next_at bigint NOT NULL,
    failure text
);
CREATE UNIQUE INDEX move_running ON mq.move (queue_id) WHERE status = 'running';
CREATE INDEX move_due ON mq.move (next_at) WHERE status = 'running';
CREATE INDEX move_of_queue ON mq.move (queue_id, number);

-- Has a group give a message that has come to it at that position.
CREATE FUNCTION mq.fifo_join(p_qp bigint, p_group text, p_seq bigint, p_visible_at bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO mq.fifo_group AS of_group (qp, group_id, eligible_at, head, last_seq)
    VALUES (p_qp, p_group, p_visible_at, p_seq, p_seq)
    ON CONFLICT (qp, group_id) DO UPDATE SET
        last_seq = excluded.last_seq,
        head = CASE WHEN of_group.leased = '{}' AND excluded.eligible_at < of_group.eligible_at
            THEN excluded.head ELSE of_group.head END,
        eligible_at = CASE WHEN of_group.leased = '{}'
            THEN least(of_group.eligible_at, excluded.eligible_at) ELSE of_group.eligible_at END
$$;

-- Moves messages of groups that the caller has locked to another partition, as new ones; tells where they came to. Nothing is
-- moved to a retired one.
CREATE FUNCTION mq.fifo_move_on(
    p_qp bigint, p_target bigint, p_seqs bigint[], p_ids bytea[], p_properties bytea[], p_counter bigint, p_retention bigint
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[] := '{}';
    v_group text;
    v_seq bigint;
    v_msg mq.fifo_msg;
BEGIN
    IF NOT EXISTS (SELECT FROM mq.part WHERE qp = p_target AND NOT retired) THEN
        RETURN;
    END IF;
    FOR place IN 1..cardinality(p_seqs) LOOP
        DELETE FROM mq.fifo_msg WHERE qp = p_qp AND seq = p_seqs[place] RETURNING * INTO v_msg;
        CONTINUE WHEN NOT FOUND; -- another node was faster
        v_groups := v_groups || v_msg.group_id;
        v_seq := mq.fifo_position(p_target, v_msg.group_id, v_now, p_counter + place);
        INSERT INTO mq.fifo_msg (qp, seq, visible_at, sent_at, group_id, id, properties, body)
        VALUES (p_target, v_seq, v_now, v_now, v_msg.group_id, p_ids[place], p_properties[place], v_msg.body);
        PERFORM mq.fifo_join(p_target, v_msg.group_id, v_seq, v_now);
        RETURN NEXT v_seq;
    END LOOP;
    FOR v_group IN SELECT DISTINCT each FROM unnest(v_groups) AS each LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;
