-- The outbox: messages for another database of the store. Each statement except due acts on one partition ($1), of the local outbox
-- or of the target queue.

-- name: due
-- The outboxes with messages to relay now.
SELECT qp, source_id, source, place, target_id, target, settings FROM mq.outbox
WHERE next_at <= mq.now_ms() AND (seqs <> '{}' OR EXISTS (SELECT FROM mq.message WHERE message.qp = outbox.qp))
ORDER BY next_at, qp

-- name: lock_outbox
SELECT number, token, seqs FROM mq.outbox WHERE qp = $1 FOR UPDATE

-- name: open_batch
-- Open a batch with the messages at the positions $3, the next number and the token $2; other nodes leave it alone for $4 ms.
UPDATE mq.outbox SET number = number + 1, token = $2, seqs = $3, next_at = mq.now_ms() + $4 WHERE qp = $1 RETURNING number

-- name: renumber
-- End the open batch, and continue from the number $2: that of the batch, or one that has arrived at the target, because this database
-- lost its counter (it was restored, or failed over to a lagging standby). Do nothing if the batch is no longer $3 with the token $4.
UPDATE mq.outbox SET number = $2, seqs = '{}', next_at = 0 WHERE qp = $1 AND number = $3 AND token = $4

-- name: postpone
UPDATE mq.outbox SET next_at = mq.now_ms() + $2 WHERE qp = $1

-- name: next_seqs
-- The positions of the first up to $2 messages, of about $3 bytes in total.
SELECT seq FROM (
    SELECT seq, sum(size_bytes) OVER (ORDER BY seq) - size_bytes AS bytes_before FROM (
        SELECT seq, octet_length(body) + coalesce(octet_length(properties), 0) AS size_bytes
        FROM mq.msg WHERE qp = $1 ORDER BY seq LIMIT $2
    ) AS next
) AS sized WHERE bytes_before < $3 ORDER BY seq

-- name: messages
-- The rows of the messages at the positions $2, with their remaining delay.
SELECT to_jsonb(msg) || jsonb_build_object('waits', greatest(0, visible_at - mq.now_ms())) FROM mq.msg AS msg
WHERE qp = $1 AND seq = ANY($2::bigint[]) ORDER BY seq

-- name: delete_relayed
WITH deleted AS (
    DELETE FROM mq.msg WHERE qp = $1 AND seq = ANY($2::bigint[]) RETURNING group_key
)
SELECT mq.fair_settle($1, array_agg(group_key)) FROM deleted WHERE group_key IS NOT NULL HAVING count(*) > 0

-- name: fifo_delete_relayed
SELECT mq.fifo_remove($1, $2::bigint[], 1::bigint << 60)

-- name: record_arrival
-- Returns a row if the batch had not arrived before.
INSERT INTO mq.arrival AS before (qp, from_place, from_qp, number, token) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (qp, from_place, from_qp) DO UPDATE SET number = excluded.number, token = excluded.token
    WHERE before.number < excluded.number
RETURNING number

-- name: last_arrival
SELECT number, token FROM mq.arrival WHERE qp = $1 AND from_place = $2 AND from_qp = $3

-- name: store_batch
-- Store the messages $2 (rows as above), in their order; $3 is the start of the counter.
INSERT INTO mq.msg
SELECT new.* FROM (SELECT mq.now_ms() AS now) AS clock, jsonb_array_elements($2::jsonb) WITH ORDINALITY AS arrived (item, at),
    LATERAL jsonb_populate_record(NULL::mq.msg, arrived.item || jsonb_build_object(
        'qp', $1::bigint,
        'seq', (clock.now << 20) | (($3::bigint + arrived.at) & 1048575),
        'visible_at', clock.now + (arrived.item ->> 'waits')::bigint,
        'sent_at', least((arrived.item ->> 'sent_at')::bigint, clock.now)
    )) AS new
RETURNING visible_at

-- name: fifo_store_batch
-- The same for a FIFO queue whose origin is $4; $5 is the interval of deduplication, $6 has the keys.
SELECT sent.o_seq FROM (
    SELECT array_agg(group_id ORDER BY at) AS groups, array_agg(id ORDER BY at) AS ids, array_agg(properties ORDER BY at) AS properties,
        array_agg(body ORDER BY at) AS bodies, array_agg(coalesce(nullif((item ->> 'waits')::bigint, 0), -1) ORDER BY at) AS delays
    FROM jsonb_array_elements($2::jsonb) WITH ORDINALITY AS arrived (item, at), jsonb_populate_record(NULL::mq.fifo_msg, item)
) AS its, mq.fifo_send($1, $4, $3, $5, groups, $6::bytea[], ids, properties, bodies, delays) AS sent

-- name: fifo_set_receives
-- Set the receives and times of the messages at the positions $3, just sent, from the rows $2.
UPDATE mq.fifo_msg AS msg SET source = was.source, first_received_at = was.first_received_at,
    receive_count = was.receive_count, receives_before = was.receives_before
FROM jsonb_populate_recordset(NULL::mq.fifo_msg, $2::jsonb) AS was
WHERE msg.qp = $1 AND msg.seq = ANY($3::bigint[]) AND msg.id = was.id

-- name: end_outbox
UPDATE mq.outbox SET ended_at = coalesce(ended_at, mq.now_ms()), seqs = '{}', next_at = 0 WHERE qp = $1

-- name: known_outbox
-- The outbox from the queue $1 to the latest queue of the name $2.
SELECT qp, target_id, place, settings FROM mq.outbox WHERE source_id = $1 AND target = $2 AND ended_at IS NULL
ORDER BY qp DESC LIMIT 1

-- name: make_outbox
-- $1 source_id, $2 source, $3 place, $4 target_id, $5 target, $6 settings.
WITH made AS (
    INSERT INTO mq.outbox (qp, source_id, source, place, target_id, target, settings)
    SELECT nextval(pg_get_serial_sequence('mq.part', 'qp')), $1, $2, $3, $4, $5, $6
    ON CONFLICT (source_id, place, target_id) DO UPDATE SET settings = excluded.settings
    RETURNING qp
), part AS (
    INSERT INTO mq.part (qp, queue_id) OVERRIDING SYSTEM VALUE SELECT qp, 0 FROM made ON CONFLICT (qp) DO NOTHING
)
SELECT qp FROM made
