-- Queues: what is asked in words of PostgreSQL's own, and of one database (store/queries has the rest).

-- name: find_queue
-- The last column tells whether messages of a standard queue name groups.
SELECT queue_id, name, settings, created_at, modified_at, qp, origin,
    (SELECT 100 < ANY(priorities) FROM mq.part WHERE part.qp = queue.qp)
FROM mq.queue WHERE name = $1

-- name: lock_queue
SELECT FROM mq.queue WHERE name = $1 FOR UPDATE

-- name: end_what_has_ended
-- What the retention ($2, in ms) has ended stays ended, however long the next one is.
UPDATE mq.part SET ended_until = greatest(ended_until, mq.retention_now() - $2), ended_before = (mq.now_ms() + 1) << 20
WHERE qp = $1

-- name: queue_sources
SELECT name FROM mq.queue
WHERE convert_from(settings, 'UTF8')::jsonb ->> 'dead_letter_queue' = $1 AND name > $2
ORDER BY name LIMIT $3

-- name: kept_key
INSERT INTO mq.setting (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING value
