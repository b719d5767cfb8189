-- Queues: the control plane. Everything here is rare.

-- name: find_queue
-- The last column tells whether messages of a standard queue name groups.
SELECT queue_id, name, settings, created_at, modified_at, qp, origin,
    (SELECT 100 < ANY(priorities) FROM mq.part WHERE part.qp = queue.qp)
FROM mq.queue WHERE name = $1

-- name: insert_queue
-- Nothing is inserted where the name exists: another node was faster.
WITH made AS (
    INSERT INTO mq.queue (name, settings, created_at, modified_at, qp, origin)
    SELECT $1, $2, now, now, 0, 0 FROM (SELECT mq.now_ms() AS now) clock
    ON CONFLICT (name) DO NOTHING
    RETURNING queue_id
)
INSERT INTO mq.part (queue_id) SELECT queue_id FROM made RETURNING queue_id, qp

-- name: place_queue
UPDATE mq.queue SET qp = $2, origin = CASE WHEN origin = 0 THEN $2 ELSE origin END WHERE queue_id = $1
RETURNING queue_id, name, settings, created_at, modified_at, qp, origin

-- name: lock_queue
SELECT queue_id, name, settings, created_at, modified_at, qp, origin FROM mq.queue WHERE name = $1 FOR UPDATE

-- name: update_queue
UPDATE mq.queue SET settings = $2, modified_at = coalesce($3, mq.now_ms()) WHERE queue_id = $1 RETURNING mq.now_ms()

-- name: delete_queue
DELETE FROM mq.queue WHERE queue_id = $1

-- name: retire_part
UPDATE mq.part SET retired = true, retired_at = mq.now_ms() WHERE qp = $1

-- name: insert_part
INSERT INTO mq.part (queue_id) VALUES ($1) RETURNING qp

-- name: end_what_has_ended
-- What the retention ($2, in ms) has ended stays ended, however long the next one is.
UPDATE mq.part SET ended_until = greatest(ended_until, mq.retention_now() - $2), ended_before = (mq.now_ms() + 1) << 20
WHERE qp = $1

-- name: list_queues
SELECT name FROM mq.queue
WHERE name > $2 AND name >= $1 AND starts_with(name, $1)
ORDER BY name LIMIT $3

-- name: count_queues
SELECT count(*) FROM mq.queue

-- name: list_sources
SELECT name FROM mq.queue
WHERE convert_from(settings, 'UTF8')::jsonb ->> 'dead_letter_queue' = $1 AND name > $2
ORDER BY name LIMIT $3

-- name: begin_pause
INSERT INTO mq.pause (kind, name, begun_at) VALUES ($1, $2, mq.now_ms())
ON CONFLICT (kind, name) DO UPDATE SET begun_at = excluded.begun_at

-- name: holds_pause
SELECT begun_at + $3 > mq.now_ms() FROM mq.pause WHERE kind = $1 AND name = $2

-- name: end_pause
DELETE FROM mq.pause WHERE kind = $1 AND name = $2

-- name: forget_pauses
DELETE FROM mq.pause WHERE kind = $1 AND begun_at + $2 <= mq.now_ms()

-- name: kept_key
INSERT INTO mq.meta (key, value) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET key = excluded.key
RETURNING value

-- name: get_meta
SELECT value FROM mq.meta WHERE key = $1

-- name: put_meta
INSERT INTO mq.meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value
