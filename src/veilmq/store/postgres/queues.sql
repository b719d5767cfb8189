-- What cold commands need in words of PostgreSQL's own; all else of theirs is in store/queries.

-- name: find_queue
-- The last column tells whether messages of a standard queue name groups.
SELECT queue_id, name, settings, created_at, modified_at, qp, origin,
    (SELECT 100 < ANY(priorities) FROM mq.part WHERE part.qp = queue.qp)
FROM mq.queue WHERE name = $1

-- name: end_what_has_ended
-- What the retention ($2, in ms) has ended stays ended, however long the next one is.
UPDATE mq.part SET ended_until = greatest(ended_until, mq.retention_now() - $2), ended_before = (mq.now_ms() + 1) << 20
WHERE qp = $1

-- name: queue_sources
SELECT name FROM mq.queue
WHERE convert_from(settings, 'UTF8')::jsonb ->> 'dead_letter_queue' = $1 AND name > $2 ORDER BY name LIMIT $3

-- name: kept_key
INSERT INTO mq.setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING value

-- name: now
SELECT mq.now_ms()

-- name: event_state
SELECT recorded, planned, exported, dropped FROM mq.event_state

-- name: lock_sources
-- Those of a queue, as far as two of one consumer are not opened at one time.
SELECT pg_advisory_xact_lock(hashtextextended('sources', $1))

-- name: find_claimed
-- By its id, among all messages of the claim $2.
SELECT seq FROM mq.message WHERE qp = $1 AND claim = $2 AND id = $3

-- name: insert_publication
INSERT INTO publication (qp, writer_id, batch, stages, messages_per_s_max, next_at)
VALUES ($1, $2, $3, $4::text::bigint[], $5, $6) RETURNING number

-- name: put_publication
UPDATE publication SET stages = $2::text::bigint[], next_at = $3 WHERE number = $1

-- name: forget_arrivals
DELETE FROM mq.arrival WHERE qp = $1
