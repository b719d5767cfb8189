-- Numbered events, and their export.

-- name: insert_event_batch
INSERT INTO event_batch (number, events, encoded) VALUES ($1, $2, $3);

-- name: events_planned_to
-- The end of a range that must end before a number: always the end of a batch.
SELECT number + events - 1 FROM event_batch WHERE number < $1 ORDER BY number DESC LIMIT 1;

-- name: plan_events
UPDATE event_state SET planned = $1;

-- name: event_batches
SELECT number, events, encoded FROM event_batch WHERE number >= $1 AND number <= $2 ORDER BY number LIMIT $3;

-- name: export_events
UPDATE event_state SET exported = $1 WHERE exported < $1;

-- name: delete_events
-- A slice of the exported batches.
DELETE FROM event_batch WHERE number IN (
    SELECT number FROM event_batch WHERE number <= (SELECT exported FROM event_state) ORDER BY number LIMIT $1
) RETURNING number;
