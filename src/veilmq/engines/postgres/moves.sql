-- Move tasks: control plane, a row each. ($1 is the number of their queue where one is named.)

-- name: insert_move
-- Nothing is inserted while another task of the queue runs.
INSERT INTO mq.move (id, queue_id, source, destination, moves_per_s_max, status, to_move, started_at, next_at, starter)
SELECT $2, $1, $3, $4, $5, 'running', $6, now, now, $7 FROM (SELECT mq.now_ms() AS now) clock
ON CONFLICT (queue_id) WHERE status = 'running' DO NOTHING
RETURNING *

-- name: delete_older_moves
DELETE FROM mq.move WHERE queue_id = $1 AND number <= (
    SELECT number FROM mq.move WHERE queue_id = $1 ORDER BY number DESC OFFSET $2 LIMIT 1
)

-- name: delete_moves
DELETE FROM mq.move WHERE queue_id = $1

-- name: moves_of
SELECT * FROM mq.move WHERE queue_id = $1 ORDER BY number DESC LIMIT $2

-- name: cancel_move
UPDATE mq.move SET status = 'cancelled' WHERE queue_id = $1 AND id = $2 AND status = 'running' RETURNING *

-- name: due_move
-- The task that has waited longest, of those that no other node is at.
SELECT * FROM mq.move WHERE status = 'running' AND next_at <= mq.now_ms() ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: next_move
SELECT min(next_at) - mq.now_ms() FROM mq.move WHERE status = 'running'

-- name: update_move
-- $2 more messages were moved; the next slice follows after $3 ms.
UPDATE mq.move SET moved = moved + $2, next_at = mq.now_ms() + $3, status = $4, failure = $5 WHERE number = $1
