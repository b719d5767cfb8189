-- Move tasks; at most one per queue runs.

-- name: insert_move
-- Inserts nothing while another task of the queue runs.
INSERT INTO move (queue_id, id, source, destination, moves_per_s_max, status, to_move, started_at, next_at, starter)
VALUES ($1, $2, $3, $4, $5, 'running', $6, $7, $7, $8) ON CONFLICT (queue_id) WHERE status = 'running' DO NOTHING
RETURNING id, source, destination, moves_per_s_max, status, moved, to_move, started_at, failure;

-- name: delete_older_moves
DELETE FROM move WHERE queue_id = $1 AND number <= (
    SELECT number FROM move WHERE queue_id = $1 ORDER BY number DESC LIMIT 1 OFFSET $2
);

-- name: delete_moves
DELETE FROM move WHERE queue_id = $1;

-- name: moves_of
SELECT id, source, destination, moves_per_s_max, status, moved, to_move, started_at, failure FROM move
WHERE queue_id = $1 ORDER BY number DESC LIMIT $2;

-- name: cancel_move
UPDATE move SET status = 'cancelled' WHERE queue_id = $1 AND id = $2 AND status = 'running'
RETURNING id, source, destination, moves_per_s_max, status, moved, to_move, started_at, failure;

-- name: due_move
-- The task that has waited longest.
SELECT number, queue_id, source, destination, moves_per_s_max, moved, to_move, starter, next_at FROM move
WHERE status = 'running' AND next_at <= $1 ORDER BY next_at LIMIT 1;

-- name: update_move
-- $2 more messages were moved; the next slice is due at $3.
UPDATE move SET moved = moved + $2, next_at = $3, status = $4, failure = $5 WHERE number = $1;
