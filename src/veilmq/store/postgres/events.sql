-- The event log: ended receipts, by the first partition of their queue ($1), and the numbering of events.

-- name: delete_late
-- Late deletes of the receipts at the positions $2 with the generations $3. Delete and return those that were stored as expired.
WITH late AS (
    DELETE FROM mq.expired_receipt AS kept USING unnest($2::bigint[], $3::bigint[]) AS requested (seq, generation)
    WHERE kept.qp = $1 AND kept.seq = requested.seq AND kept.generation = requested.generation
    RETURNING kept.*
), noted AS (
    INSERT INTO mq.event
    SELECT qp, seq, generation, queue, 'late_deleted', mq.now_ms(), received_at, visible_at, came_at, receive_count, log,
        group_hash, size, id, properties
    FROM late
)
SELECT seq FROM late

-- name: delete_old_receipts
-- Delete up to $2: those stored at least $3 ms ago, and those older than the latest $4.
DELETE FROM mq.expired_receipt WHERE qp = $1 AND number = ANY(ARRAY(
    SELECT number FROM (SELECT number, seen_at FROM mq.expired_receipt WHERE qp = $1 ORDER BY number LIMIT $2) AS first
    WHERE seen_at <= mq.now_ms() - $3
        OR number <= (SELECT max(number) FROM mq.expired_receipt WHERE qp = $1) - $4::bigint
))

-- name: retired_parts
SELECT qp FROM mq.part WHERE queue_id = $1 AND retired ORDER BY qp

-- name: create_state
INSERT INTO mq.event_state (one) VALUES (true) ON CONFLICT DO NOTHING

-- name: take
-- Take up to $1 committed events, without those that another node is taking.
DELETE FROM mq.event
WHERE number = ANY(ARRAY(SELECT number FROM mq.event ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING number, qp, queue, properties, group_hash, size, id, generation, came_at, received_at, visible_at, receive_count, log,
    outcome, closed_at

-- name: add_numbers
UPDATE mq.event_state SET recorded = recorded + $1, dropped = dropped + $2

-- name: delete_receipt
-- The expired receipt of a dropped event.
DELETE FROM mq.expired_receipt WHERE qp = $1 AND number = $2
