-- What cold commands need here in words of PostgreSQL's own; all else of theirs is in store/queries.

-- name: now
SELECT mq.now_ms()

-- name: setting
SELECT value FROM mq.meta WHERE key = $1

-- name: put_setting
INSERT INTO mq.meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: lock_event_state
SELECT FROM mq.event_state FOR UPDATE

-- name: event_state
SELECT recorded, planned, exported, dropped FROM mq.event_state

-- name: lock_topic
SELECT FROM mq.topic WHERE name = $1 FOR UPDATE

-- name: due_move
-- The task that has waited longest, of those that no other node is at; and when the next of the others is due.
SELECT number, queue_id, source, destination, moves_per_s_max, moved, to_move, starter, (
    SELECT min(other.next_at) FROM mq.move AS other WHERE other.status = 'running' AND other.number <> move.number
)
FROM mq.move WHERE status = 'running' AND next_at <= $1 ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED
