-- What the janitor finds its work by.

ALTER TABLE mq.part ADD COLUMN retired_at bigint;

CREATE INDEX queue_origin ON mq.queue (origin);

-- Dead letters keep the time of their first sending, which their position does not tell.
CREATE INDEX msg_moved ON mq.msg (qp, sent_at) WHERE source IS NOT NULL;

DROP INDEX mq.accepted_expires;
CREATE INDEX accepted_expires ON mq.accepted (qp, expires_at);

DROP INDEX mq.attempt_attempted;
CREATE INDEX attempt_attempted ON mq.attempt (qp, attempted_at);

-- Deletes up to p_count messages past their retention, and says anew when their groups give the next one; tells how many.
CREATE FUNCTION mq.fifo_sweep(p_qp bigint, p_retention bigint, p_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_seqs bigint[];
    v_groups text[];
    v_group text;
BEGIN
    SELECT array_agg(ended.seq) INTO v_seqs FROM (
        SELECT seq FROM mq.fifo_msg
        WHERE qp = p_qp AND seq < ((v_now - p_retention + 1) << 20) AND sent_at <= v_now - p_retention
        ORDER BY seq LIMIT p_count
    ) AS ended;
    v_groups := mq.fifo_lock(p_qp, v_seqs);
    DELETE FROM mq.fifo_msg WHERE qp = p_qp AND seq = ANY(v_seqs);
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
    RETURN coalesce(cardinality(v_seqs), 0);
END $$;
