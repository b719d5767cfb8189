-- Messages of claims. Each statement acts on one partition ($1).

-- name: claim_bytes
SELECT coalesce(sum(octet_length(body) + coalesce(octet_length(properties), 0)), 0) FROM mq.message WHERE qp = $1 AND claim = $2

-- name: bind
-- Bind the messages at the positions $3, locked in the same transaction, to the claim $2, each in its shard of $4. The generation $5
-- fences older receipts.
UPDATE mq.msg SET
    visible_at = 1::bigint << 61, receive_count = msg.receive_count + 1, received_at = clock.now,
    first_received_at = coalesce(msg.first_received_at, clock.now), generation = $5, epoch = msg.epoch + 1, log = NULL,
    claim = $2, shard = chosen.shard
FROM unnest($3::bigint[], $4::int[]) AS chosen (seq, shard), (SELECT mq.now_ms() AS now) clock
WHERE msg.qp = $1 AND msg.seq = ANY($3) AND msg.seq = chosen.seq

-- name: bind_fifo
SELECT * FROM mq.fifo_bind($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: read
-- Up to $5 messages of the shard $3 of the claim $2, from position $4 on.
SELECT seq, id, body, properties, sent_at, receive_count + receives_before AS receive_count, source FROM mq.msg
WHERE qp = $1 AND claim = $2 AND shard = $3 AND seq >= $4
ORDER BY seq LIMIT $5

-- name: end_slice
-- Do $5 to the next $3 messages of the claim $2: 'delete', or 'give_back', which deletes only messages past their retention of $4 ms.
-- Return their number.
WITH next AS MATERIALIZED (
    SELECT msg.ctid AS row_id, clock.now, $5 = 'give_back' AND msg.sent_at > clock.kept
        AND (msg.sent_at > clock.ended_until OR msg.seq >= clock.ended_before) AS is_kept
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

-- name: end_slice_fifo
-- The same for a FIFO queue.
SELECT mq.fifo_remove($1, ARRAY(SELECT seq FROM mq.fifo_msg WHERE qp = $1 AND claim = $2 ORDER BY shard, seq LIMIT $3), $4, $5)
