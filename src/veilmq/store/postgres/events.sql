-- The event log: receipts that ended, as of the first partition of their queue ($1), and the numbers of events.

-- name: correct
-- Receipts that were deleted late: $2 positions and $3 generations. Tells the positions of those whose end was kept, and keeps
-- them no longer.
WITH late AS (
    DELETE FROM mq.expired_receipt AS kept USING unnest($2::bigint[], $3::bigint[]) AS asked (seq, generation)
    WHERE kept.qp = $1 AND kept.seq = asked.seq AND kept.generation = asked.generation
    RETURNING kept.*
), noted AS (
    INSERT INTO mq.event
    SELECT qp, seq, generation, queue, 'late_deleted', mq.now_ms(), received_at, visible_at, came_at, receive_count, log,
        group_hash, size, id, properties
    FROM late
)
SELECT seq FROM late

-- name: forget_expired
-- Those seen $3 ms ago and earlier, and those behind the latest $4, up to $2 of them.
DELETE FROM mq.expired_receipt WHERE qp = $1 AND number = ANY(ARRAY(
    SELECT number FROM (SELECT number, seen_at FROM mq.expired_receipt WHERE qp = $1 ORDER BY number LIMIT $2) AS first
    WHERE seen_at <= mq.now_ms() - $3
        OR number <= (SELECT max(number) FROM mq.expired_receipt WHERE qp = $1) - $4::bigint
))

-- name: retired_parts
SELECT qp FROM mq.part WHERE queue_id = $1 AND retired ORDER BY qp

-- name: state
INSERT INTO mq.event_state (one) VALUES (true) ON CONFLICT DO NOTHING

-- name: take
-- Up to $1 events that are committed; those that another node takes are its.
DELETE FROM mq.event
WHERE number = ANY(ARRAY(SELECT number FROM mq.event ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING number, qp, queue, properties, group_hash, size, id, generation, came_at, received_at, visible_at, receive_count, log,
    outcome, closed_at

-- name: number
UPDATE mq.event_state SET recorded = recorded + $1, dropped = dropped + $2

-- name: drop_expired
-- Whose end was dropped is told of no more.
DELETE FROM mq.expired_receipt WHERE qp = $1 AND number = $2
