-- The invariants of the store, each as a query that finds what breaks it: a count and one example.
-- A lane's positions are the 1 << 41 from number << 41 on; the upper half of them is for delayed messages.

-- name: every lease has its message
SELECT count(*), min(position) FROM lease WHERE position NOT IN (SELECT position FROM message);

-- name: every lease names the lane of its position
SELECT count(*), min(position) FROM lease WHERE lane <> position >> 41;

-- name: every message lies in a lane, before its next position
SELECT count(*), min(position) FROM message LEFT JOIN lane ON lane.number = message.position >> 41
WHERE position >= CASE (position >> 40) & 1 WHEN 1 THEN coalesce(delayed_next, 0) ELSE coalesce(direct_next, 0) END;

-- name: every lane belongs to a queue or was purged
SELECT count(*), min(number) FROM lane WHERE queue IS NOT NULL AND queue NOT IN (SELECT number FROM queue);

-- name: messages without a group are received in order: none without a lease before one with a lease
SELECT count(*), min(message.position)
FROM lane JOIN message ON message.position >= lane.direct_floor AND message.position < (
    SELECT max(position) FROM lease WHERE position >= lane.direct_floor AND position < lane.direct_next
)
WHERE lane.queue IS NOT NULL AND lane.kind = 0
AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.position = message.position)
AND NOT EXISTS (
    SELECT 1 FROM claim_range
    WHERE first = (SELECT max(first) FROM claim_range WHERE first <= message.position) AND last >= message.position
);

-- name: every delayed message has a lease
SELECT count(*), min(message.position)
FROM lane JOIN message ON message.position >= (lane.number << 41) + (1 << 40) AND message.position < lane.delayed_next
WHERE NOT EXISTS (SELECT 1 FROM lease WHERE lease.position = message.position);

-- name: every received message has its count, its epoch and its times
SELECT count(*), min(position) FROM lease
WHERE receive_count > 0 AND (epoch < receive_count OR first_received_at_ms = 0 OR received_at_ms = 0);

-- name: every lease names the group of its message
SELECT count(*), min(position) FROM lease JOIN message USING (position) WHERE lease.group_key IS NOT message.group_key;

-- name: every turn lies in a lane
SELECT count(*), min(group_key) FROM turn WHERE lane NOT IN (SELECT number FROM lane);

-- name: every ordered group that has messages, other than the last few, has a turn
-- Turns of the others may be without a row (fifo_lane.py).
SELECT count(*), min(position) FROM lane JOIN message ON position >= direct_floor AND position < direct_next - 512
WHERE kind = 2 AND queue IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM turn WHERE turn.lane = number AND turn.group_key = message.group_key);

-- name: every fair group that has messages never received has a turn, not behind the first of them
SELECT count(*), min(message.position) FROM lane JOIN message ON position >= direct_floor AND position < direct_next
WHERE kind = 1 AND queue IS NOT NULL AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.position = message.position)
AND NOT EXISTS (
    SELECT 1 FROM turn WHERE turn.lane = number AND turn.group_key = message.group_key
    AND next_position <= message.position AND visible_at_ms <= sent_at_ms
);

-- name: every turn of an ordered group has a message
SELECT count(*), min(turn.group_key) FROM turn JOIN lane ON number = turn.lane
WHERE kind = 2 AND queue IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM message
    WHERE message.group_key = turn.group_key AND position >= number << 41 AND position < direct_next
);

-- name: what an ordered group has behind its turn was never received
SELECT count(*), min(message.position)
FROM turn JOIN lane ON number = turn.lane
JOIN message ON message.group_key = turn.group_key AND message.position >= direct_floor AND message.position < direct_next
JOIN lease ON lease.position = message.position
WHERE kind = 2 AND queue IS NOT NULL AND message.position >= next_position AND receive_count > 0;

-- name: no ordered group has its turn before the end of its leases
SELECT count(*), min(turn.group_key) FROM turn JOIN lane ON number = turn.lane
WHERE kind = 2 AND queue IS NOT NULL AND visible_at_ms < (
    SELECT max(lease.visible_at_ms) FROM message JOIN lease USING (position)
    WHERE message.group_key = turn.group_key AND position >= direct_floor AND position < direct_next
    AND receive_count > 0
);

-- name: every ordered group has its turn at an instant of one of its messages
-- Of a message without a lease that is when it was sent, or a delay of its queue later, which may have changed since.
SELECT count(*), min(turn.group_key) FROM turn JOIN lane ON number = turn.lane
WHERE kind = 2 AND queue IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM message LEFT JOIN lease USING (position)
    WHERE message.group_key = turn.group_key AND position >= number << 41 AND position < direct_next
    AND CASE
        WHEN lease.position IS NOT NULL THEN turn.visible_at_ms = lease.visible_at_ms
        ELSE (turn.visible_at_ms - sent_at_ms) % 1000 = 0 AND turn.visible_at_ms - sent_at_ms BETWEEN 0 AND 604800000
    END
);

-- name: every dead letter has its source, its receives and its times
SELECT count(*), min(position) FROM message
WHERE (source IS NULL) <> (receives_before IS NULL) OR (source IS NULL) <> (first_received_at_ms IS NULL)
OR (first_sent_at_ms IS NOT NULL AND (source IS NULL OR first_sent_at_ms > sent_at_ms));

-- name: every move task is of a queue, and has moved no more than it was to move
SELECT count(*), min(number) FROM move_task
WHERE queue NOT IN (SELECT number FROM queue) OR moved > to_move OR moved < 0;

-- name: every claimed range is of a claim, and of one lane
SELECT count(*), min(first) FROM claim_range
WHERE claim NOT IN (SELECT id FROM claim) OR last < first OR first >> 41 <> last >> 41;

-- name: no claimed ranges overlap
SELECT count(*), min(first) FROM (
    SELECT first, lag(last, 1, -1) OVER (ORDER BY first) AS last_before FROM claim_range
) WHERE last_before >= first;

-- name: every claimed range has as many messages as it says
SELECT count(*), min(first) FROM claim_range JOIN lane ON number = first >> 41
WHERE queue IS NOT NULL AND claim_range.messages <> (
    SELECT count(*) FROM message WHERE position >= first AND position <= last
);

-- name: claimed messages have the leases that their ranges tell of
SELECT count(*), min(first) FROM claim_range JOIN lane ON number = first >> 41
WHERE queue IS NOT NULL AND leased * claim_range.messages <> (
    SELECT count(*) FROM lease WHERE position >= first AND position <= last AND visible_at_ms = 1 << 61
);

-- name: every lease that no time ends is of a claimed message
SELECT count(*), min(position) FROM lease JOIN lane ON number = lane
WHERE queue IS NOT NULL AND visible_at_ms >= 1 << 61 AND NOT EXISTS (
    SELECT 1 FROM claim_range
    WHERE first = (SELECT max(first) FROM claim_range WHERE first <= position) AND last >= position AND leased
);

-- name: every claim is of a queue and, until its messages go, of a source
SELECT count(*), min(id) FROM claim
WHERE state IN ('binding', 'open') AND (
    queue NOT IN (SELECT number FROM queue) OR source IS NULL OR source NOT IN (SELECT number FROM source)
);

-- name: every open claim has all of its messages
SELECT count(*), min(id) FROM claim
WHERE state IN ('binding', 'open')
AND messages <> (SELECT coalesce(sum(claim_range.messages), 0) FROM claim_range WHERE claim = id);

-- name: events are numbered without a gap
SELECT count(*), min(number) FROM event_batch AS batch
WHERE EXISTS (SELECT 1 FROM event_batch WHERE number > batch.number)
AND NOT EXISTS (SELECT 1 FROM event_batch WHERE number = batch.number + batch.events);

-- name: a receipt that expired is kept once
SELECT count(*), min(number) FROM (
    SELECT min(number) AS number FROM expired_receipt GROUP BY position, generation HAVING count(*) > 1
);

-- name: every lane that is logged by itself was purged
SELECT count(*), min(lane) FROM logged_lane WHERE lane NOT IN (SELECT number FROM lane WHERE queue IS NULL);

-- name: the counters agree with the rows
SELECT count(*), min(number) FROM lane
WHERE messages <> (
    SELECT count(*) FROM message WHERE position >= number << 41 AND position <= (number << 41) + ((1 << 41) - 1)
) OR in_flight <> (
    SELECT count(*) FROM lease
    WHERE lane = number AND visible_at_ms > counted_at_ms AND visible_at_ms < 1 << 61 AND receive_count > 0
) OR delayed <> (
    SELECT count(*) FROM lease WHERE lane = number AND visible_at_ms > counted_at_ms AND receive_count = 0
);

-- name: nothing was sent after the store's last instant
SELECT count(*), min(position) FROM message WHERE sent_at_ms > (SELECT value FROM meta WHERE name = 'last_instant_ms');

-- name: every piece is of a stage that is there
SELECT count(*), min(number) FROM piece WHERE stage NOT IN (SELECT number FROM stage);

-- name: what was decided belongs to a publication, what was not to a writer
SELECT count(*), min(number) FROM stage
WHERE CASE WHEN publication IS NULL THEN writer NOT IN (SELECT number FROM writer)
ELSE publication NOT IN (SELECT number FROM publication) END;

-- name: a stage that waits for a publication has as many messages as it says
SELECT count(*), min(number) FROM stage WHERE publication IS NULL
AND messages <> (SELECT coalesce(sum(piece.messages), 0) FROM piece WHERE piece.stage = stage.number);

-- name: every subscription is of a topic, and has the queue that it is pushed from
SELECT count(*), min(name) FROM subscription
WHERE topic NOT IN (SELECT number FROM topic) OR push_queue NOT IN (SELECT number FROM queue);
