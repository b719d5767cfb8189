-- The janitor's statements. Each sweeps a slice of one partition ($1); its status has the number of rows. Logged queues have other
-- variants, as in messages.sql.

-- name: parts
-- The next retired partitions behind $1, with the arguments for the event log if they were logged.
SELECT qp, log_origin, log_queue, retired_at FROM mq.part WHERE retired AND qp > $1 ORDER BY qp LIMIT $2

-- name: sweep
-- Delete messages of a standard queue past its retention of $2 ms, or past an earlier, shorter one: up to $3 in the order of arrival,
-- and up to $3 dead letters, which arrived later than they were sent. Claimed messages are kept.
WITH ended AS MATERIALIZED (
    SELECT past.row_id FROM mq.part, (SELECT mq.retention_now() - $2 AS until) clock, LATERAL (
        SELECT msg.ctid AS row_id FROM mq.msg
        WHERE msg.qp = $1 AND msg.seq < greatest((clock.until + 1) << 20, part.ended_before) AND msg.claim IS NULL
            AND msg.sent_at <= greatest(clock.until, part.ended_until) -- and no position precedes its sending
        ORDER BY msg.seq LIMIT $3
        FOR UPDATE
    ) AS past
    WHERE part.qp = $1
    UNION SELECT moved.row_id FROM (
        SELECT msg.ctid AS row_id FROM mq.msg
        WHERE msg.qp = $1 AND msg.source IS NOT NULL AND msg.sent_at <= (SELECT mq.retention_now() - $2) AND msg.claim IS NULL
        ORDER BY msg.sent_at LIMIT $3
        FOR UPDATE
    ) AS moved
) -- no log
-- log: ), deleted AS (
    DELETE FROM mq.msg USING ended WHERE msg.qp = $1 AND msg.ctid = ended.row_id
-- log:     RETURNING mq.receipt_of(msg) AS was, msg.sent_at
-- log: ), noted AS (
-- log:     INSERT INTO mq.event
-- log:     SELECT event.* FROM deleted, unnest(mq.outcomes('supersede', (was).log, false)) AS outcome,
-- log:         mq.event_of($4, $5, outcome, was, sent_at + $2) AS event
-- log:     RETURNING *
-- log: ), kept AS (
-- log:     INSERT INTO mq.expired_receipt SELECT *, mq.now_ms() FROM noted ON CONFLICT DO NOTHING
-- log: ) SELECT FROM deleted

-- name: sweep_fifo
-- The same for a FIFO queue; $4 and $5 are its first partition, and its name if it is logged.
SELECT FROM generate_series(1, mq.fifo_remove($1, ARRAY(SELECT seq FROM mq.fifo_msg, (SELECT mq.retention_now() - $2 AS until) clock
    WHERE qp = $1 AND seq < ((clock.until + 1) << 20) AND sent_at <= clock.until AND claim IS NULL
    ORDER BY seq LIMIT $3), $2, 'expire', $4, $5))

-- name: keep_expired
-- Keep messages expired that the retention ($2, in ms) has ended, even if the next retention is longer.
UPDATE mq.part SET ended_until = greatest(ended_until, mq.retention_now() - $2), ended_before = (mq.now_ms() + 1) << 20 WHERE qp = $1

-- name: pending_changes
-- Up to which eligible_at groups may still follow an old delay, and the position before which a shorter retention has ended messages;
-- 0 for neither. Whether messages of a FIFO queue are claimed.
SELECT late_until, ended_before, EXISTS (SELECT FROM mq.fifo_msg WHERE qp = $1 AND claim IS NOT NULL) FROM mq.part WHERE qp = $1

-- name: settle_groups
-- Apply the current delay to up to $5 groups that follow an old one, behind the group at $3 and $4; $2 is the retention in ms. Return
-- their old entries in the index.
WITH late AS MATERIALIZED (
    SELECT of_group.group_id, of_group.eligible_at, of_group.head
    FROM mq.part JOIN mq.fifo_group AS of_group ON of_group.qp = part.qp
    WHERE part.qp = $1 AND of_group.qp = $1 AND (of_group.eligible_at, of_group.head) > ($3::bigint, $4::bigint)
        AND of_group.eligible_at BETWEEN part.late_from AND part.late_until AND of_group.leased = '{}'
    ORDER BY of_group.eligible_at, of_group.head LIMIT $5 FOR UPDATE OF of_group SKIP LOCKED
)
SELECT eligible_at, head, mq.fifo_settle($1, group_id, $2) FROM late

-- name: settle_leased
-- Apply a longer retention, $2 ms, to the groups whose leases it had cut short.
SELECT mq.fifo_settle($1, group_id, $2) FROM (
    SELECT group_id FROM mq.fifo_group WHERE qp = $1 AND eligible_at > mq.now_ms() AND EXISTS (
        SELECT FROM mq.fifo_msg WHERE qp = $1 AND seq = ANY(leased) AND visible_at > eligible_at) FOR UPDATE) AS late

-- name: end_late
UPDATE mq.part SET late_until = 0 WHERE qp = $1 AND late_until = $2

-- name: clear_ended
-- Messages that a shorter retention had ended before the position $2 are deleted.
UPDATE mq.part SET ended_until = 0, ended_before = 0 WHERE qp = $1 AND ended_before = $2
    AND NOT EXISTS (SELECT FROM mq.msg WHERE qp = $1 AND claim IS NOT NULL)

-- name: delete_accepted
-- Delete entries that expired at least $3 ms ago.
DELETE FROM mq.accepted WHERE qp = $1 AND key = ANY(ARRAY(
    SELECT key FROM mq.accepted WHERE qp = $1 AND expires_at <= mq.now_ms() - $3 ORDER BY expires_at LIMIT $2
    FOR UPDATE SKIP LOCKED))

-- name: delete_messages
-- log: WITH deleted AS (
    DELETE FROM mq.msg WHERE qp = $1 AND seq = ANY(ARRAY(SELECT seq FROM mq.msg WHERE qp = $1 ORDER BY seq LIMIT $2))
-- log:     RETURNING mq.receipt_of(msg) AS was
-- log: ), noted AS (
-- log:     INSERT INTO mq.event
-- log:     SELECT event.* FROM deleted, unnest(mq.outcomes('supersede', (was).log, false)) AS outcome,
-- log:         mq.event_of($3, $4, outcome, was, $5) AS event
-- log:     RETURNING *
-- log: ), kept AS (
-- log:     INSERT INTO mq.expired_receipt SELECT *, mq.now_ms() FROM noted
-- log:     WHERE EXISTS (SELECT FROM mq.queue WHERE origin = $3) ON CONFLICT DO NOTHING
-- log: ) SELECT FROM deleted

-- name: delete_receipts
-- Delete expired receipts of a deleted queue; those of a purged one still serve late deletes.
DELETE FROM mq.expired_receipt WHERE qp = $1 AND NOT EXISTS (SELECT FROM mq.queue WHERE origin = $1)
    AND number = ANY(ARRAY(SELECT number FROM mq.expired_receipt WHERE qp = $1 ORDER BY number LIMIT $2))

-- name: delete_groups
DELETE FROM mq.fifo_group WHERE qp = $1 AND group_id = ANY(ARRAY(SELECT group_id FROM mq.fifo_group WHERE qp = $1 ORDER BY group_id LIMIT $2))

-- name: sweep_turns
-- Of up to $2 due turns of each priority, delete those of groups whose messages have all expired.
WITH empty AS MATERIALIZED (
    SELECT due.group_key FROM mq.part, unnest(priorities) AS of_part (lane), LATERAL (
        SELECT group_key FROM mq.fair_turn WHERE qp = $1 AND priority = of_part.lane AND at <= mq.now_ms() ORDER BY at LIMIT $2
    ) AS due
    WHERE part.qp = $1 AND NOT EXISTS ( -- one by one
        SELECT FROM mq.msg WHERE msg.qp = $1 AND msg.priority = of_part.lane AND msg.group_key = due.group_key OFFSET 0
    )
), settled AS MATERIALIZED (
    SELECT mq.fair_settle($1, array_agg(group_key)) FROM empty HAVING count(*) > 0
)
SELECT FROM empty CROSS JOIN settled

-- name: delete_part
-- Delete a partition once it is empty, its queue is deleted, and no statement from before its retirement can still be running.
WITH deleted AS (
    DELETE FROM mq.part
    WHERE qp = $1 AND retired_at < mq.now_ms() - $2
        AND NOT EXISTS (SELECT FROM mq.queue WHERE origin = $1) AND NOT EXISTS (SELECT FROM mq.message WHERE qp = $1)
        AND NOT EXISTS (SELECT FROM mq.accepted WHERE qp = $1) AND NOT EXISTS (SELECT FROM mq.attempt WHERE qp = $1)
        AND NOT EXISTS (SELECT FROM mq.expired_receipt WHERE qp = $1)
    RETURNING qp
), throttle AS (
    DELETE FROM mq.throttle WHERE qp = $1 AND EXISTS (SELECT FROM deleted)
)
DELETE FROM mq.in_flight WHERE qp = $1

-- name: end_outboxes
-- The outboxes of deleted queues.
UPDATE mq.outbox SET ended_at = mq.now_ms()
WHERE ended_at IS NULL AND source_id > 0 AND NOT EXISTS (SELECT FROM mq.queue WHERE queue_id = outbox.source_id)

-- name: delete_outboxes
-- Delete empty outboxes that ended $1 ms ago, so that no statement can still store there.
WITH dropped AS (
    DELETE FROM mq.outbox WHERE ended_at < mq.now_ms() - $1 AND seqs = '{}'
        AND NOT EXISTS (SELECT FROM mq.message WHERE message.qp = outbox.qp OFFSET 0) -- one by one
    RETURNING qp
)
DELETE FROM mq.part USING dropped WHERE part.qp = dropped.qp
