-- Deletes messages of groups that the caller has locked, and says anew when these give the next one.
CREATE FUNCTION mq.fifo_remove(p_qp bigint, p_seqs bigint[], p_retention bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_group text;
BEGIN
    DELETE FROM mq.fifo_msg WHERE qp = p_qp AND seq = ANY(p_seqs);
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;
