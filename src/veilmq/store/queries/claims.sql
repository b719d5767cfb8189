-- Sources and their claims, by the origin of their queue (qp). An ending claim has a row until its messages are deleted or
-- returned; one without a source is deleted then.

-- name: source
-- The source $2, and those of the consumer $3 if it is not empty.
SELECT qp, name, consumer, epoch, acknowledged, last, hold, lease, beat_at FROM source
WHERE qp = $1 AND (name = $2 OR (consumer = $3 AND $3 <> '')) ORDER BY name;

-- name: sources
-- First those with active claims at $2, then by the latest heartbeat.
SELECT qp, name, consumer, epoch, acknowledged, last, hold, lease, beat_at FROM source WHERE qp = $1
ORDER BY beat_at + hold <= $2 OR NOT EXISTS (
    SELECT 1 FROM claim WHERE claim.qp = $1 AND claim.source = source.name AND claim.state IN ('binding', 'open')
), beat_at DESC, name LIMIT $3;

-- name: source_names
SELECT name FROM source WHERE qp = $1 ORDER BY name;

-- name: insert_source
INSERT INTO source (qp, name, beat_at, look_at) VALUES ($1, $2, $3, $3)
RETURNING qp, name, consumer, epoch, acknowledged, last, hold, lease, beat_at;

-- name: put_source
UPDATE source SET consumer = $3, epoch = $4, acknowledged = $5, last = $6, hold = $7, lease = $8, beat_at = $9, look_at = $10
WHERE qp = $1 AND name = $2;

-- name: delete_sources
-- The source $2; all if it is null.
DELETE FROM source WHERE qp = $1 AND name = coalesce($2, name);

-- name: due_source
-- A source whose hold may have expired, or which may be silent for too long.
SELECT qp, name, consumer, epoch, acknowledged, last, hold, lease, beat_at, look_at FROM source
WHERE look_at <= $1 ORDER BY look_at LIMIT 1;

-- name: claims_of
-- Those of the source $2; all if it is null.
SELECT claim_id, qp, part, source, number, state, messages, shards, filled, bound_at, is_ending FROM claim
WHERE qp = $1 AND source = coalesce($2, source) ORDER BY number;

-- name: held_claims
-- Of each queue with sources, at $1: the number of active claims, their messages, and the first bind time.
SELECT queue.name, count(claim_id), CAST(coalesce(sum(messages), 0) AS bigint), min(bound_at) FROM source
JOIN queue ON queue.origin = source.qp LEFT JOIN claim ON claim.qp = source.qp AND claim.source = source.name
    AND number > acknowledged AND state IN ('binding', 'open') AND beat_at + hold > $1 GROUP BY queue.name;

-- name: insert_claim
INSERT INTO claim (qp, part, source, number, state, bound_at) VALUES ($1, $2, $3, $4, 'binding', $5)
RETURNING claim_id, qp, part, source, number, state, messages, shards, filled, bound_at, is_ending;

-- name: put_claim
UPDATE claim SET state = $2, messages = $3, shards = $4, filled = $5 WHERE claim_id = $1;

-- name: claimed
-- How many messages of a queue are claimed, without those still to be deleted or returned.
SELECT coalesce(sum(messages), 0) FROM claim WHERE qp = $1 AND state IN ('binding', 'open');

-- name: end_claims
-- Active claims from number $3 to $4, of all sources if $2 is null; acknowledged ones leave their source.
UPDATE claim SET state = $5, is_ending = true, source = CASE WHEN $5 = 'acknowledged' THEN NULL ELSE source END
WHERE qp = $1 AND source = coalesce($2, source) AND number BETWEEN $3 AND $4 AND state IN ('binding', 'open');

-- name: finish_claim
UPDATE claim SET is_ending = false WHERE claim_id = $1;

-- name: delete_claim
DELETE FROM claim WHERE claim_id = $1;

-- name: detach_claims
-- Those of the source $2, of all if it is null, up to number $3.
UPDATE claim SET source = NULL WHERE qp = $1 AND source = coalesce($2, source) AND number <= $3;

-- name: delete_ended_claims
DELETE FROM claim WHERE qp = $1 AND source IS NULL AND NOT is_ending;

-- name: ending_claim
-- Of the queue $1, of all if it is null; acknowledged claims first, because their end frees space.
SELECT claim_id, qp, part, source, number, state, messages, shards, filled, bound_at, is_ending FROM claim
WHERE is_ending AND qp = coalesce($1, qp) ORDER BY state <> 'acknowledged', claim_id LIMIT 1;
