-- The invariants of the store, each as a query for rows that break it. Of a retired partition, only what the janitor needs to
-- find its messages is checked.
-- name: views
-- The place in its queue of each unclaimed message; grp and visible_at are those of its row.
CREATE TEMP VIEW placed AS
SELECT partition, seq, lane, grp, visible_at, receive_count, epoch, received_at, first_received_at FROM visibility
UNION ALL
SELECT partition, seq, NULL, grp, visible_at, receive_count, epoch, received_at, first_received_at FROM ordered
WHERE seq > 0 AND visible_at IS NOT 4611686018427387903
UNION ALL
SELECT r.partition, m.seq, r.lane, NULL, m.seq >> 20, 0, 0, NULL, NULL
FROM ready r CROSS JOIN message m ON m.seq BETWEEN r.first_seq AND r.last_seq;

-- The claimed messages. In a FIFO queue they block their groups, hidden forever.
CREATE TEMP VIEW held AS
SELECT c.partition, m.seq, c.claim_id FROM claimed c CROSS JOIN message m ON m.seq BETWEEN c.first_seq AND c.last_seq;

CREATE TEMP VIEW living AS SELECT qp FROM part WHERE NOT retired;

-- The first message of each group of a standard queue.
CREATE TEMP VIEW head AS
SELECT partition, lane, grp, visible_at AS head_at, seq AS head_seq FROM (
    SELECT *, row_number() OVER (PARTITION BY partition, lane, grp ORDER BY visible_at, seq) AS place
    FROM visibility WHERE grp IS NOT NULL
) WHERE place = 1;

-- The cursors of ordered groups, each with the same data computed from its messages.
CREATE TEMP VIEW cursor AS
SELECT
    c.partition, c.grp, c.fixed_at, c.head_seq, c.floating_seq, c.received_to, c.own_to, c.in_flight, p.counted_at,
    min(o.seq) AS first_seq, coalesce(max(o.seq) FILTER (WHERE o.receive_count > 0), 0) AS last_received,
    max(o.visible_at) FILTER (WHERE o.receive_count > 0) AS leased_to,
    count(*) FILTER (WHERE o.receive_count > 0 AND NOT o.apart AND o.visible_at = c.fixed_at) AS together,
    count(*) FILTER (WHERE o.seq = coalesce(c.head_seq, 0)) AS heads,
    count(*) FILTER (WHERE o.visible_at = c.fixed_at) AS fixed,
    count(*) FILTER (WHERE o.seq = c.floating_seq AND o.visible_at IS NULL) AS floating
FROM part p CROSS JOIN ordered c ON c.partition = p.qp AND c.seq = 0
    LEFT JOIN ordered o ON o.partition = c.partition AND o.grp = c.grp AND o.seq > 0
WHERE NOT p.retired GROUP BY c.partition, c.grp;

-- name: every queue has a partition, and every partition in use a queue
SELECT qp FROM (SELECT qp, queue_id FROM part WHERE NOT retired EXCEPT SELECT qp, queue_id FROM queue)
UNION ALL SELECT qp FROM (SELECT qp, queue_id FROM queue EXCEPT SELECT qp, queue_id FROM part WHERE NOT retired);

-- name: every message has one place in a queue, and every place its message
SELECT seq FROM (
    SELECT seq, 1 AS places FROM placed UNION ALL SELECT seq, 1 FROM held UNION ALL SELECT seq, 0 FROM message
) GROUP BY seq HAVING sum(places) <> 1 OR count(*) <> 2;

-- name: every place is in a partition
SELECT partition FROM placed UNION SELECT partition FROM ordered_run UNION SELECT partition FROM ready
UNION SELECT partition FROM fair_group EXCEPT SELECT qp FROM part;

-- name: every row names the group of its message, and so does its lane
SELECT seq FROM placed CROSS JOIN message USING (seq)
WHERE placed.grp IS NOT message.grp OR lane NOT BETWEEN 1 AND 32 OR (lane > 16) <> (placed.grp IS NOT NULL);

-- name: messages of FIFO queues are ordered, and no others
SELECT placed.seq FROM queue CROSS JOIN placed ON placed.partition = queue.qp
WHERE (placed.lane IS NULL) <> coalesce(json_extract(CAST(queue.settings AS TEXT), '$.fifo'), 0);

-- name: every run of the ready list has all of its messages
SELECT last_seq FROM ready
WHERE last_seq - first_seq + 1 <> (SELECT count(*) FROM message WHERE seq BETWEEN first_seq AND last_seq);

-- name: every unclaimed message of a FIFO queue is in a run, which counts its messages
SELECT seq FROM ordered
WHERE seq > 0 AND visible_at IS NOT 4611686018427387903 AND NOT EXISTS (
    SELECT 1 FROM ordered_run WHERE partition = ordered.partition AND first_seq <= seq AND last_seq = (
        SELECT min(last_seq) FROM ordered_run WHERE partition = ordered.partition AND last_seq >= seq
    )
)
UNION ALL
SELECT last_seq FROM ordered_run AS r
WHERE messages < 1 OR messages <> (
    SELECT count(*) FROM message AS m LEFT JOIN ordered AS o ON o.partition = r.partition AND o.grp = m.grp AND o.seq = m.seq
    WHERE m.seq BETWEEN r.first_seq AND r.last_seq AND o.visible_at IS NOT 4611686018427387903
);

-- name: the totals agree with the rows
SELECT qp FROM part LEFT JOIN placed ON partition = qp WHERE NOT retired GROUP BY qp
HAVING messages <> count(seq) OR in_flight <> count(*) FILTER (WHERE visible_at > counted_at AND receive_count > 0)
    OR delayed <> count(*) FILTER (WHERE visible_at > counted_at AND receive_count = 0);

-- name: every received message has its count, its epoch and its times
SELECT seq FROM placed
WHERE (receive_count > 0) <> (received_at IS NOT NULL) OR (receive_count > 0) <> (first_received_at IS NOT NULL)
    OR (receive_count > 0 AND (visible_at IS NULL OR epoch < receive_count));

-- name: every dead letter has its source, its receives and its first receive
SELECT seq FROM message
WHERE (source IS NULL) <> (receives_before IS NULL) OR (source IS NULL) <> (first_received_at_ms IS NULL);

-- name: every group of a standard queue has a row with its first message
SELECT grp FROM (SELECT * FROM head EXCEPT SELECT * FROM fair_group) WHERE partition IN living
UNION ALL SELECT grp FROM (SELECT * FROM fair_group EXCEPT SELECT * FROM head) WHERE partition IN living;

-- name: every ordered group has its cursor and its number
SELECT seq FROM ordered
WHERE partition IN living AND (partition, grp) NOT IN (SELECT partition, grp FROM ordered WHERE seq = 0)
UNION ALL SELECT grp FROM cursor WHERE (partition, grp) NOT IN (SELECT partition, number FROM message_group);

-- name: every cursor names instants and messages of its group
SELECT grp FROM cursor WHERE NOT heads OR (fixed_at IS NULL AND head_seq IS NOT floating_seq)
    OR (fixed_at IS NOT NULL AND NOT fixed) OR (floating_seq IS NOT NULL AND NOT floating);

-- name: a group with received messages becomes ready when its last lease ends, and its cursor has the last of them
SELECT grp FROM cursor WHERE received_to <> last_received
    OR (leased_to IS NOT NULL AND (fixed_at IS NOT leased_to OR floating_seq IS NOT NULL));

-- name: a group without received messages becomes ready no later than its first message
SELECT grp FROM cursor AS c JOIN ordered AS o USING (partition, grp) WHERE seq = first_seq AND leased_to IS NULL
    AND iif(visible_at IS NULL, c.floating_seq IS NOT seq, c.fixed_at IS NULL OR c.fixed_at > visible_at);

-- name: every cursor counts the messages hidden until its group is ready, and other hidden messages are apart
SELECT grp FROM cursor WHERE fixed_at > counted_at AND fixed_at < 4611686018427387903 AND in_flight <> together
UNION ALL
SELECT seq FROM cursor AS c JOIN ordered AS o USING (partition, grp)
WHERE seq > 0 AND visible_at > counted_at AND NOT apart AND (receive_count = 0 OR visible_at <> c.fixed_at);

-- name: every cursor covers all messages with their own delay
SELECT seq FROM cursor AS c JOIN ordered AS o USING (partition, grp)
WHERE seq > 0 AND seq > c.own_to AND visible_at IS NOT NULL AND receive_count = 0;

-- name: every claim counts its claimed messages, and has a source while it is active
SELECT claim_id FROM claim FULL JOIN held USING (claim_id) GROUP BY claim_id
HAVING remaining IS NOT count(held.seq) OR remaining > messages
    OR (NOT is_ending AND remaining <> iif(state IN ('binding', 'open'), messages, 0))
    OR (state IN ('binding', 'open') AND (qp, coalesce(source, '')) NOT IN (SELECT qp, name FROM source));

-- name: claimed messages of FIFO queues, and no others, are hidden forever
SELECT coalesce(o.seq, c.seq)
FROM (SELECT partition, grp, seq FROM ordered WHERE seq > 0 AND visible_at = 4611686018427387903) AS o
    FULL JOIN (SELECT partition, grp, last_seq AS seq FROM claimed WHERE grp IS NOT NULL AND lane <= 16) AS c
    USING (partition, grp, seq)
WHERE o.seq IS NULL OR c.seq IS NULL;

-- name: no seq exceeds the last assigned one
SELECT seq FROM message WHERE seq > max((SELECT last_seq FROM progress), (SELECT coalesce(max(last_seq), 0) FROM part));

-- name: the deduplication log has no gap
SELECT number FROM (SELECT *, lead(number) OVER (ORDER BY number) AS next FROM accepted)
WHERE length(entries) % 48 <> 0 OR next <> number + length(entries) / 48;

-- name: events are numbered without a gap
SELECT number FROM (SELECT *, lead(number) OVER (ORDER BY number) AS next FROM event_batch) WHERE next <> number + events;

-- name: every expired receipt is stored once
SELECT min(number) FROM expired_receipt GROUP BY seq, generation HAVING count(*) > 1;

-- name: every stage has a writer, and as many messages as it counts
SELECT stage_id FROM stage
WHERE publication IS NULL AND (
    writer_id NOT IN (SELECT writer_id FROM writer)
    OR messages <> (SELECT coalesce(sum(piece.messages), 0) FROM piece WHERE piece.stage_id = stage.stage_id)
)
UNION ALL SELECT stage_id FROM piece WHERE stage_id NOT IN (SELECT stage_id FROM stage);

-- name: every stage of a publication exists until it is published
SELECT number FROM publication CROSS JOIN json_each('[' || trim(stages, '{}') || ']') AS named
WHERE (number, named.value) NOT IN (SELECT publication, stage_id FROM stage WHERE publication IS NOT NULL);

-- name: every move task has a queue, and has moved no more messages than planned
SELECT number FROM move WHERE queue_id NOT IN (SELECT queue_id FROM queue) OR moved NOT BETWEEN 0 AND to_move;

-- name: every subscription has a topic and, if it is pushed, a queue
SELECT s.name FROM subscription AS s LEFT JOIN topic AS t USING (topic_id)
WHERE t.name IS NULL OR (s.pushed AND NOT EXISTS (
    SELECT 1 FROM queue
    WHERE name = substr(t.name, 1, instr(t.name, '/') - 1) || '~push/' || substr(t.name, instr(t.name, '/') + 1) || '~' || s.name
));
