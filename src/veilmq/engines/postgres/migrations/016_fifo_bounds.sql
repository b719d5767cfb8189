-- A receive of a FIFO queue does no more than it has time for, however many groups have dead letters alone, or nothing any
-- more: it took so long before that it was given up, and the next one began with the same groups again.

-- Leases up to p_count messages, of groups as they came up. It moves as many dead letters as one may (100, 1 MiB), and looks at
-- 1,000 groups that give nothing; the next receive goes on. The last row of one that moved dead letters has no message. Where the
-- queue is logged, p_log is its name.
CREATE OR REPLACE FUNCTION mq.fifo_receive(
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
    v_moved_bytes bigint := 0;
    v_in_vain int := 0;
    v_group text;
    v_done text[] := '{}';
    v_chosen bigint[];
    v_given bigint[] := '{}';
    v_waited bigint := least(v_now - coalesce(p_requested, v_now), 536870911);
    each record;
BEGIN
    WHILE v_left > 0 AND v_moved < 100 AND v_moved_bytes < 1048576 AND v_in_vain < 1000 LOOP
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
                v_moved_bytes := v_moved_bytes + octet_length(each.body) + coalesce(octet_length(each.properties), 0);
                EXIT WHEN v_moved = 100 OR v_moved_bytes >= 1048576;
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
        v_in_vain := v_in_vain + (v_chosen = '{}')::int;
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
