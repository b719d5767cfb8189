-- The checks of the doctor. Each returns one row: the number of rows that break it, and an example.

-- name: every message has its partition
SELECT count(*), min(qp || '/' || seq) FROM mq.message AS msg
WHERE qp > 0 AND NOT EXISTS (SELECT FROM mq.part WHERE part.qp = msg.qp)

-- name: every message has a priority of its partition
SELECT count(*), min(qp || '/' || seq) FROM mq.msg JOIN mq.part USING (qp) WHERE NOT priority = ANY(priorities)

-- name: every message of a FIFO queue has its group
SELECT count(*), min(qp || '/' || seq) FROM mq.fifo_msg AS msg
WHERE NOT EXISTS (SELECT FROM mq.fifo_group AS its WHERE its.qp = msg.qp AND its.group_id = msg.group_id)

-- name: every group has a message
SELECT count(*), min(qp || '/' || group_id) FROM mq.fifo_group AS its
WHERE NOT EXISTS (SELECT FROM mq.fifo_msg AS msg WHERE its.qp = msg.qp AND its.group_id = msg.group_id)

-- name: every FIFO group with only visible messages is eligible
SELECT count(*), min(qp || '/' || group_id) FROM (
    SELECT its.qp, its.group_id FROM mq.fifo_group AS its
    JOIN mq.fifo_msg AS msg ON its.qp = msg.qp AND its.group_id = msg.group_id
    JOIN mq.part ON part.qp = its.qp AND part.late_until = 0
    WHERE its.eligible_at > mq.now_ms() GROUP BY its.qp, its.group_id
    HAVING max(mq.due(msg.visible_at, msg.sent_at, msg.receive_count, part.delay)) <= mq.now_ms()
) AS closed

-- name: no message of a fair queue is visible before the turn of its group
SELECT count(*), min(qp || '/' || seq) FROM mq.msg
WHERE group_key IS NOT NULL AND NOT EXISTS (
    SELECT FROM mq.fair_turn AS turn WHERE turn.qp = msg.qp AND turn.group_key = msg.group_key
        AND turn.priority = msg.priority AND turn.at <= msg.visible_at
)

-- name: every queue has an active partition
SELECT count(*), min(name) FROM mq.queue
WHERE NOT EXISTS (SELECT FROM mq.part WHERE part.qp = queue.qp AND part.queue_id = queue.queue_id AND NOT retired)

-- name: every claimed message is hidden, and its claim is not finished
SELECT count(*), min(qp || '/' || seq) FROM mq.message AS msg JOIN mq.part USING (qp)
WHERE NOT retired AND (claim IS NOT NULL OR visible_at >= 1::bigint << 61) AND (visible_at < 1::bigint << 61 OR NOT EXISTS (
    SELECT FROM mq.claim WHERE claim_id = msg.claim AND part = msg.qp AND (is_ending OR state IN ('binding', 'open'))
))

-- name: every open claim has a source, and all of its messages
SELECT count(*), min(qp || '/' || claim_id) FROM mq.claim
WHERE state IN ('binding', 'open') AND (
    NOT EXISTS (SELECT FROM mq.source WHERE source.qp = claim.qp AND source.name = claim.source)
    OR messages <> (SELECT count(*) FROM mq.message AS msg WHERE msg.qp = claim.part AND msg.claim = claim_id)
)

-- name: every stage has a writer, and as many messages as it counts
SELECT count(*), min(writer_id || '/' || stage_id) FROM mq.stage
WHERE publication IS NULL AND (
    NOT EXISTS (SELECT FROM mq.writer WHERE writer.writer_id = stage.writer_id)
    OR messages <> (SELECT coalesce(sum(piece.messages), 0) FROM mq.piece WHERE piece.stage_id = stage.stage_id)
)

-- name: every stage of a publication exists until it is published
SELECT count(*), min(number::text) FROM mq.publication
WHERE EXISTS (
    SELECT FROM unnest(stages) AS named
    WHERE NOT EXISTS (SELECT FROM mq.stage WHERE stage_id = named AND publication = number)
)
