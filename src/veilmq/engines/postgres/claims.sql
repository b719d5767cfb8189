-- Claims: sources and claims are rows of the control plane, by the first partition of their queue; what is done with messages
-- names their partition ($1).

-- name: serialize
-- Two sources of one consumer are not opened at one time.
SELECT pg_advisory_xact_lock(hashtextextended('sources', $1))

-- name: lock_source
SELECT *, mq.now_ms() AS now FROM mq.source WHERE qp = $1 AND name = $2 FOR UPDATE

-- name: lock_sources
-- The source $2, and those of the consumer $3 if that is not empty; of a null $2 all.
SELECT *, mq.now_ms() AS now FROM mq.source
WHERE qp = $1 AND (name = $2 OR $2 IS NULL OR consumer = $3 AND $3 <> '') ORDER BY name FOR UPDATE

-- name: lock_part
-- Holds off a purge for the rest of the transaction; no row of a retired partition.
SELECT mq.now_ms() AS now FROM mq.part WHERE qp = $1 AND NOT retired FOR SHARE

-- name: claims_of
SELECT * FROM mq.claim WHERE qp = $1 AND source = $2 ORDER BY number

-- name: see_source
SELECT *, mq.now_ms() AS now FROM mq.source WHERE qp = $1 AND name = $2

-- name: see_sources
-- Those with open claims first, then those that were heard of last.
SELECT source.*, clock.now FROM mq.source, (SELECT mq.now_ms() AS now) clock
WHERE qp = $1
ORDER BY beat_at + hold <= clock.now OR NOT EXISTS (
        SELECT FROM mq.claim WHERE claim.qp = $1 AND claim.source = name AND state IN ('binding', 'open')
    ), beat_at DESC, name
LIMIT $2

-- name: see_claims
SELECT * FROM mq.claim WHERE qp = $1 AND source = ANY($2::text[]) ORDER BY number

-- name: ready
-- How many messages of a standard queue are visible, and when the oldest was sent.
SELECT count(*) AS visible, min(msg.sent_at) AS oldest_sent_at FROM mq.part, unnest(part.priorities) AS of_part (priority), mq.msg
WHERE part.qp = $1 AND msg.qp = $1 AND msg.priority = of_part.priority AND msg.visible_at <= mq.now_ms()
    AND msg.sent_at > mq.now_ms() - $2 AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before)

-- name: add_source
INSERT INTO mq.source (qp, name, beat_at, look_at) SELECT $1, $2, now, now FROM (SELECT mq.now_ms() AS now) clock

-- name: begin_epoch
UPDATE mq.source SET consumer = $3, epoch = epoch + 1 WHERE qp = $1 AND name = $2

-- name: beat
-- Hold $3 and lease $4 in ms; null leaves them as they are.
UPDATE mq.source SET beat_at = clock.now, hold = coalesce($3, hold), lease = coalesce($4, lease),
    look_at = clock.now + coalesce($3, hold)
FROM (SELECT mq.now_ms() AS now) clock
WHERE qp = $1 AND name = $2
RETURNING source.*, clock.now

-- name: bound_last
UPDATE mq.source SET last = greatest(last, $3) WHERE qp = $1 AND name = $2

-- name: acknowledge
UPDATE mq.source SET acknowledged = $3, lost = $4 WHERE qp = $1 AND name = $2

-- name: delete_source
DELETE FROM mq.source WHERE qp = $1 AND name = $2

-- name: look_later
UPDATE mq.source SET look_at = $3 WHERE qp = $1 AND name = $2

-- name: due_source
SELECT *, mq.now_ms() AS now FROM mq.source WHERE look_at <= mq.now_ms() ORDER BY look_at LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: add_claim
INSERT INTO mq.claim (qp, part, source, number, state, bound_at) VALUES ($1, $2, $3, $4, 'binding', mq.now_ms())
RETURNING *

-- name: claim_bytes
SELECT coalesce(sum(octet_length(body) + coalesce(octet_length(properties), 0)), 0) FROM mq.msg WHERE qp = $1 AND claim = $2

-- name: claim_bytes_fifo
SELECT coalesce(sum(octet_length(body) + coalesce(octet_length(properties), 0)), 0) FROM mq.fifo_msg WHERE qp = $1 AND claim = $2

-- name: grow_claim
UPDATE mq.claim SET messages = messages + $2, shards = $3, filled = $4 WHERE claim_id = $1 RETURNING *

-- name: drop_claim
DELETE FROM mq.claim WHERE claim_id = $1

-- name: make_whole
UPDATE mq.claim SET state = 'open', shards = greatest(1, shards) WHERE claim_id = $1 AND state = 'binding' RETURNING *

-- name: end_claims
-- Ends open claims in the state $2; $3 says whether their source forgets them.
UPDATE mq.claim SET state = $2, is_ending = true, source = CASE WHEN $3 THEN NULL ELSE source END
WHERE claim_id = ANY($1::bigint[]) AND state IN ('binding', 'open')

-- name: detach
-- Waits for the slices that are under way ...
UPDATE mq.claim SET source = NULL WHERE claim_id = ANY($1::bigint[])

-- name: forget_ended
-- ... so that this sees which of them were the last; what is still ending is forgotten with its last slice.
DELETE FROM mq.claim WHERE claim_id = ANY($1::bigint[]) AND NOT is_ending

-- name: lose_all
-- The messages of a purged partition are gone, and nothing is left to be done with them.
UPDATE mq.claim SET state = CASE WHEN state IN ('binding', 'open') THEN 'lost' ELSE state END, is_ending = false
WHERE qp = $1 AND (is_ending OR state IN ('binding', 'open'))

-- name: forget_detached
DELETE FROM mq.claim WHERE qp = $1 AND source IS NULL AND NOT is_ending

-- name: forget_claims
DELETE FROM mq.claim WHERE qp = $1

-- name: forget_sources
DELETE FROM mq.source WHERE qp = $1

-- name: claimed
SELECT coalesce(sum(messages), 0) FROM mq.claim WHERE qp = $1 AND state IN ('binding', 'open')

-- name: ending
-- A claim that ends, which no other node is at.
SELECT * FROM mq.claim WHERE is_ending ORDER BY claim_id LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: ending_of
-- One of that queue, for which somebody waits.
SELECT * FROM mq.claim WHERE qp = $1 AND is_ending ORDER BY claim_id LIMIT 1 FOR UPDATE

-- name: lock_claim
SELECT * FROM mq.claim WHERE claim_id = $1 AND is_ending FOR UPDATE

-- name: ended
UPDATE mq.claim SET is_ending = false WHERE claim_id = $1

-- name: next_look
-- In how many ms there is something to do.
SELECT least(
    (SELECT min(look_at) FROM mq.source) - mq.now_ms(),
    (SELECT 0 FROM mq.claim WHERE is_ending LIMIT 1)
)

-- name: queue_of
SELECT queue_id, name, settings, created_at, modified_at, qp, origin FROM mq.queue WHERE origin = $1

-- name: choose
-- As a receive of $2 would: locks the messages that are within their retention of $3 ms, and changes nothing.
SELECT ready.* FROM mq.part, unnest(part.priorities) AS of_part (priority), LATERAL (
    SELECT msg.seq, msg.receive_count, msg.group_key, octet_length(msg.body) + coalesce(octet_length(msg.properties), 0) AS size_bytes
    FROM mq.msg
    WHERE msg.qp = $1 AND msg.priority = of_part.priority AND msg.visible_at <= mq.now_ms()
        AND msg.sent_at > mq.now_ms() - $3 AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before)
    ORDER BY msg.visible_at, msg.seq
    LIMIT $2
    FOR UPDATE SKIP LOCKED
) ready
WHERE part.qp = $1 AND NOT part.retired
LIMIT $2

-- name: bind
-- Gives the messages at the positions $3, locked in the same transaction, to the claim $2, each to its shard of $4; $5 fences
-- the receipts from before.
UPDATE mq.msg SET
    visible_at = 1::bigint << 61,
    receive_count = msg.receive_count + 1,
    first_received_at = coalesce(msg.first_received_at, clock.now),
    received_at = clock.now,
    generation = $5,
    epoch = msg.epoch + 1,
    log = NULL,
    claim = $2,
    shard = chosen.shard
FROM unnest($3::bigint[], $4::int[]) AS chosen (seq, shard), (SELECT mq.now_ms() AS now) clock
WHERE msg.qp = $1 AND msg.seq = ANY($3) AND msg.seq = chosen.seq

-- name: bind_fifo
SELECT * FROM mq.fifo_bind($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: send_dead
-- Sends the messages at the positions $3, locked in the same transaction, to the partition $2 as dead letters of the queue $5;
-- $4 is where the counter begins.
WITH clock AS MATERIALIZED (
    SELECT mq.now_ms() AS now
), dead AS (
    DELETE FROM mq.msg
    WHERE msg.qp = $1 AND msg.seq = ANY($3::bigint[]) AND EXISTS (SELECT FROM mq.part WHERE qp = $2 AND NOT retired)
    RETURNING msg.*
)
INSERT INTO mq.msg (
    qp, seq, visible_at, sent_at, first_received_at, priority, id, properties, source, receives_before, body,
    group_key
)
SELECT $2, (clock.now << 20) | (($4 + row_number() OVER (ORDER BY array_position($3, dead.seq))) & 1048575),
    clock.now, dead.sent_at, dead.first_received_at, dead.priority, dead.id, dead.properties, $5,
    dead.receives_before + dead.receive_count, dead.body, dead.group_key
FROM dead, clock
RETURNING priority

-- name: evict_fifo
SELECT mq.fifo_evict($1, $2, $3, $4, $5, $6)

-- name: find
-- Where a message of the claim $2 is.
SELECT seq FROM mq.msg WHERE qp = $1 AND claim = $2 AND id = $3

-- name: find_fifo
SELECT seq FROM mq.fifo_msg WHERE qp = $1 AND claim = $2 AND id = $3

-- name: read
-- Up to $5 messages of the shard $3 of the claim $2, from position $4 on.
SELECT seq, id, body, properties, sent_at, receive_count + receives_before AS receive_count, source FROM mq.msg
WHERE qp = $1 AND claim = $2 AND shard = $3 AND seq >= $4
ORDER BY seq LIMIT $5

-- name: read_fifo
SELECT seq, id, body, properties, sent_at, receive_count + receives_before AS receive_count, source FROM mq.fifo_msg
WHERE qp = $1 AND claim = $2 AND shard = $3 AND seq >= $4
ORDER BY seq LIMIT $5

-- name: delete_some
-- Deletes the next $3 messages of the claim $2; tells how many there were.
WITH next AS MATERIALIZED (
    SELECT msg.ctid AS row_id FROM mq.msg WHERE msg.qp = $1 AND msg.claim = $2 ORDER BY msg.shard, msg.seq LIMIT $3
), deleted AS (
    DELETE FROM mq.msg USING next WHERE msg.qp = $1 AND msg.ctid = next.row_id RETURNING 1
)
SELECT count(*) FROM deleted

-- name: give_back_some
-- Gives the next $3 messages of the claim $2 back; those past their retention of $4 ms end.
WITH next AS MATERIALIZED (
    SELECT msg.ctid AS row_id, clock.now,
        msg.sent_at > clock.kept AND (msg.sent_at > clock.ended_until OR msg.seq >= clock.ended_before) AS is_kept
    FROM (SELECT mq.now_ms() AS now, mq.retention_now() - $4 AS kept, ended_until, ended_before FROM mq.part WHERE qp = $1) clock
        JOIN mq.msg ON msg.qp = $1 AND msg.claim = $2
    ORDER BY msg.shard, msg.seq LIMIT $3
), deleted AS (
    DELETE FROM mq.msg USING next WHERE msg.qp = $1 AND msg.ctid = next.row_id AND NOT next.is_kept
), given AS (
    UPDATE mq.msg SET visible_at = next.now, claim = NULL, shard = NULL FROM next
    WHERE msg.qp = $1 AND msg.ctid = next.row_id AND next.is_kept
)
SELECT count(*) FROM next

-- name: delete_some_fifo
SELECT mq.fifo_end_claim($1, $2, $3, $4)

-- name: give_back_some_fifo
SELECT mq.fifo_give_back($1, $2, $3, $4)

-- name: now
SELECT mq.now_ms()
