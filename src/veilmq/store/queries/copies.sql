-- Copies of a stopped store (store/copying.py): what both dialects read with one text.

-- name: copied_queues
SELECT queue_id, name, settings, created_at, modified_at FROM queue ORDER BY queue_id;

-- name: copied_pauses
SELECT kind, name, begun_at FROM pause ORDER BY begun_at;

-- name: copied_moves
SELECT number, id, queue_id, source, destination, moves_per_s_max, status, moved, to_move, started_at, next_at, failure, starter
FROM move ORDER BY number;

-- name: copied_topics
SELECT topic_id, name, settings, created_at, modified_at FROM topic ORDER BY topic_id;

-- name: copied_subscriptions
SELECT topic_id, name, content, pushed, created_at, modified_at FROM subscription ORDER BY topic_id, name;
