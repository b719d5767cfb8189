-- Publications: control plane, but for the pieces, which only their stage knows.

-- name: lock_part
-- Holds off purge and deletion for the rest of the transaction; no row of a retired partition.
SELECT mq.now_ms() FROM mq.part WHERE qp = $1 AND NOT retired FOR SHARE

-- Writers.

-- name: see_writer
-- How stale the note may be of when it was heard of: $3 ms.
UPDATE mq.writer SET seen_at = clock.now FROM (SELECT mq.now_ms() AS now) clock
WHERE qp = $1 AND name = $2 AND seen_at + $3 <= clock.now

-- name: add_writer
INSERT INTO mq.writer (qp, name, seen_at) VALUES ($1, $2, mq.now_ms()) ON CONFLICT (qp, name) DO NOTHING

-- name: share_writer
SELECT * FROM mq.writer WHERE qp = $1 AND name = $2 FOR SHARE

-- name: lock_writer
SELECT * FROM mq.writer WHERE qp = $1 AND name = $2 FOR UPDATE

-- name: find_writer
SELECT * FROM mq.writer WHERE qp = $1 AND name = $2

-- name: writers_of
-- The latest first, with what each has staged and not published.
SELECT writer.*, (
    SELECT coalesce(sum(stage.messages), 0)::bigint FROM mq.stage
    WHERE stage.writer_id = writer.writer_id AND publication IS NULL
) AS staged
FROM mq.writer WHERE qp = $1 ORDER BY seen_at DESC, writer_id DESC LIMIT $2

-- name: publish_batch
UPDATE mq.writer SET batch = $2, messages = $3, duplicates = 0, seen_at = mq.now_ms() WHERE writer_id = $1

-- name: count_duplicates
UPDATE mq.writer SET duplicates = duplicates + $3 WHERE writer_id = $1 AND batch = $2

-- name: silent_writers
SELECT writer_id, qp FROM mq.writer WHERE seen_at <= mq.now_ms() - $1 ORDER BY seen_at LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: delete_writer
DELETE FROM mq.writer WHERE writer_id = $1

-- Stages.

-- name: put_stage
INSERT INTO mq.stage AS before (writer_id, batch, attempt) VALUES ($1, $2, $3)
ON CONFLICT (writer_id, batch, attempt) WHERE publication IS NULL DO UPDATE SET messages = before.messages
RETURNING stage_id, messages

-- name: has_part
SELECT EXISTS (SELECT FROM mq.piece WHERE stage_id = $1 AND part = $2)

-- name: add_pieces
INSERT INTO mq.piece (stage_id, part, place, messages, content)
SELECT $1, $2, piece.place, piece.messages, piece.content
FROM unnest($3::int[], $4::int[], $5::bytea[]) AS piece (place, messages, content)

-- name: add_to_stage
UPDATE mq.stage SET messages = messages + $2 WHERE stage_id = $1

-- name: stages_of
SELECT attempt, stage_id, messages FROM mq.stage WHERE writer_id = $1 AND batch = $2 AND publication IS NULL

-- name: hand_over
-- Gives what the writer $2 has staged for the batches from $3 to $4 to a publication.
WITH given AS (
    UPDATE mq.stage SET publication = $1 WHERE writer_id = $2 AND batch BETWEEN $3 AND $4 AND publication IS NULL RETURNING 1
)
SELECT count(*) FROM given

-- name: hand_all_over
UPDATE mq.stage SET publication = $1
WHERE publication IS NULL AND writer_id IN (SELECT writer_id FROM mq.writer WHERE qp = $2)

-- name: delete_writers
DELETE FROM mq.writer WHERE qp = $1

-- What is decided.

-- name: decide
INSERT INTO mq.publication (qp, writer_id, batch, stages, messages_per_s_max, next_at) VALUES ($1, $2, $3, $4, $5, mq.now_ms())
RETURNING number

-- name: end_publication
DELETE FROM mq.publication WHERE number = $1

-- name: lock_publications
SELECT FROM mq.publication WHERE qp = $1 ORDER BY number FOR UPDATE

-- name: empty_publications
UPDATE mq.publication SET stages = '{}' WHERE qp = $1

-- name: entering
-- The first publication of a writer that is not through.
SELECT *, mq.now_ms() AS now FROM mq.publication WHERE writer_id = $1 AND stages <> '{}' ORDER BY number LIMIT 1

-- name: take
-- That publication, if no other node is at it or has been since, and it still has something to enter.
SELECT *, mq.now_ms() AS now FROM mq.publication
WHERE number = $1 AND stages <> '{}' AND (messages_per_s_max IS NULL OR next_at <= mq.now_ms()) FOR UPDATE SKIP LOCKED

-- name: due
-- The one that has waited longest for its slice; no later one of a writer before an earlier one is in the queue.
SELECT *, mq.now_ms() AS now FROM mq.publication AS mine
WHERE next_at <= mq.now_ms() AND (stages = '{}' OR NOT EXISTS (
    SELECT FROM mq.publication AS before
    WHERE before.writer_id = mine.writer_id AND before.number < mine.number AND before.stages <> '{}'
))
ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: next_slice
-- In how many ms there is something to do; writers are silent for $1 ms before they are forgotten.
SELECT least((SELECT min(next_at) FROM mq.publication), (SELECT min(seen_at) FROM mq.writer) + $1) - mq.now_ms()

-- name: first_piece
SELECT part, place, content FROM mq.piece WHERE stage_id = $1 ORDER BY part, place LIMIT 1

-- name: has_pieces
SELECT EXISTS (SELECT FROM mq.piece WHERE stage_id = $1)

-- name: put_piece
UPDATE mq.piece SET messages = $4, content = $5 WHERE stage_id = $1 AND part = $2 AND place = $3

-- name: delete_piece
DELETE FROM mq.piece WHERE stage_id = $1 AND part = $2 AND place = $3

-- name: go_on
UPDATE mq.publication SET stages = $2, next_at = mq.now_ms() + $3 WHERE number = $1

-- name: drop_pieces
-- Up to $2 pieces of stages that are the publication's.
WITH dropped AS (
    DELETE FROM mq.piece AS piece USING (
        SELECT held.stage_id, held.part, held.place FROM mq.stage JOIN mq.piece AS held USING (stage_id)
        WHERE stage.publication = $1 LIMIT $2
    ) AS next
    WHERE piece.stage_id = next.stage_id AND piece.part = next.part AND piece.place = next.place
    RETURNING 1
)
SELECT count(*) FROM dropped

-- name: drop_stages
WITH dropped AS (
    DELETE FROM mq.stage WHERE stage_id IN (SELECT stage_id FROM mq.stage WHERE publication = $1 LIMIT $2) RETURNING 1
)
SELECT count(*) FROM dropped

-- name: queue_of
SELECT queue_id, name, settings, created_at, modified_at, qp, origin FROM mq.queue WHERE origin = $1
