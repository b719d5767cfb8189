-- Queues, their partitions and cooldowns; none of these is on the hot path.

-- name: queue_names
SELECT name FROM queue WHERE name >= $1 AND name > $2 AND name < $3 ORDER BY name LIMIT $4;

-- name: count_queues
SELECT count(*) FROM queue;

-- name: queues_after
-- The next queues by number.
SELECT queue_id, name, settings, created_at, modified_at, qp, origin FROM queue WHERE queue_id > $1 ORDER BY queue_id LIMIT $2;

-- name: queue_of_origin
SELECT name FROM queue WHERE origin = $1;

-- name: insert_queue
-- Inserts nothing if another transaction has inserted the name first. place_queue sets the partition.
INSERT INTO queue (name, settings, created_at, modified_at, qp, origin) VALUES ($1, $2, $3, $3, 0, 0)
ON CONFLICT (name) DO NOTHING RETURNING queue_id;

-- name: insert_part
INSERT INTO part (queue_id) VALUES ($1) RETURNING qp;

-- name: place_queue
UPDATE queue SET qp = $2, origin = CASE WHEN origin = 0 THEN $2 ELSE origin END WHERE queue_id = $1;

-- name: update_queue
UPDATE queue SET settings = $2, modified_at = $3 WHERE queue_id = $1;

-- name: delete_queue
DELETE FROM queue WHERE queue_id = $1;

-- name: retire_part
-- If $4 is given, receipts of the partition are logged for the queue $4 with the origin $3.
UPDATE part SET retired = true, retired_at = $2, log_origin = $3, log_queue = $4 WHERE qp = $1;

-- name: begin_cooldown
INSERT INTO pause (kind, name, begun_at) VALUES ($1, $2, $3)
ON CONFLICT (kind, name) DO UPDATE SET begun_at = excluded.begun_at;

-- name: cooldown
SELECT begun_at FROM pause WHERE kind = $1 AND name = $2;

-- name: end_cooldown
DELETE FROM pause WHERE kind = $1 AND name = $2;

-- name: delete_cooldowns
-- At most $3 of those that began up to $2; one that restarts meanwhile stays.
DELETE FROM pause WHERE kind = $1 AND begun_at <= $2 AND name IN (
    SELECT name FROM pause WHERE kind = $1 AND begun_at <= $2 ORDER BY begun_at LIMIT $3
);
