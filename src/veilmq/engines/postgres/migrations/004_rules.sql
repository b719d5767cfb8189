-- Visibility rules of FIFO queues: hides messages that were just received, each for its own time, and says anew when their
-- groups give the next one.
CREATE FUNCTION mq.fifo_hide(p_qp bigint, p_seqs bigint[], p_timeouts bigint[], p_lease_max bigint, p_retention bigint)
RETURNS TABLE (seq bigint, visible_at bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_group text;
BEGIN
    RETURN QUERY UPDATE mq.fifo_msg AS msg SET visible_at = least(v_now + asked.timeout, msg.received_at + p_lease_max)
    FROM unnest(p_seqs, p_timeouts) AS asked (seq, timeout)
    WHERE msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq
    RETURNING msg.seq, msg.visible_at;
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;
