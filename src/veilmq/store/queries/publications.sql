-- Writers, their stages, and pending publications, whose stages are a text: '{7,9}'.

-- name: touch_writer
-- Updates the writer's seen_at to $3, unless it is later than $4.
UPDATE writer SET seen_at = $3 WHERE qp = $1 AND name = $2 AND seen_at <= $4;

-- name: add_writer
-- Inserts nothing if another transaction has inserted the name first.
INSERT INTO writer (qp, name, seen_at) VALUES ($1, $2, $3) ON CONFLICT (qp, name) DO NOTHING;

-- name: writer
SELECT writer_id, batch, messages, duplicates FROM writer WHERE qp = $1 AND name = $2;

-- name: writers_of
-- The latest first, with the number of messages staged and not published.
SELECT name, batch, messages, duplicates, (
    SELECT CAST(coalesce(sum(stage.messages), 0) AS bigint) FROM stage
    WHERE stage.writer_id = writer.writer_id AND publication IS NULL
), seen_at FROM writer WHERE qp = $1 ORDER BY seen_at DESC, writer_id DESC LIMIT $2;

-- name: staged
-- By queue with writers, the number of messages staged and not published.
SELECT queue.name, CAST(coalesce(sum(stage.messages), 0) AS bigint) FROM writer JOIN queue ON queue.origin = writer.qp
LEFT JOIN stage ON stage.writer_id = writer.writer_id AND stage.publication IS NULL GROUP BY queue.name;

-- name: publish_batch
UPDATE writer SET batch = $2, messages = $3, duplicates = 0, seen_at = $4 WHERE writer_id = $1;

-- name: count_duplicates
UPDATE writer SET duplicates = duplicates + $3 WHERE writer_id = $1 AND batch = $2;

-- name: silent_writers
SELECT writer_id, qp, seen_at FROM writer WHERE seen_at <= $1 ORDER BY seen_at LIMIT $2;

-- name: delete_writer
DELETE FROM writer WHERE writer_id = $1;

-- name: delete_writers_of
DELETE FROM writer WHERE qp = $1 RETURNING writer_id;

-- name: put_stage
-- The stage, created if missing; how many messages it has, and whether it has the part $4.
INSERT INTO stage (writer_id, batch, attempt) VALUES ($1, $2, $3)
ON CONFLICT (writer_id, batch, attempt) WHERE publication IS NULL DO UPDATE SET messages = stage.messages
RETURNING stage_id, messages, EXISTS (SELECT 1 FROM piece WHERE piece.stage_id = stage.stage_id AND part = $4);

-- name: insert_piece
INSERT INTO piece (stage_id, part, place, messages, content) VALUES ($1, $2, $3, $4, $5);

-- name: grow_stage
UPDATE stage SET messages = messages + $2 WHERE stage_id = $1;

-- name: stages_of
SELECT attempt, stage_id, messages FROM stage WHERE writer_id = $1 AND batch = $2 AND publication IS NULL;

-- name: assign_stages
-- Assigns the stages of the writer $2 for the batches from $3 to $4 to the publication $1.
UPDATE stage SET publication = $1 WHERE writer_id = $2 AND batch BETWEEN $3 AND $4 AND publication IS NULL RETURNING 1;

-- name: first_piece
-- With whether it is the last one.
SELECT part, place, content, NOT EXISTS (
    SELECT 1 FROM piece AS next WHERE next.stage_id = $1 AND (next.part, next.place) > (piece.part, piece.place)
) FROM piece WHERE stage_id = $1 ORDER BY part, place LIMIT 1;

-- name: put_piece
UPDATE piece SET messages = $4, content = $5 WHERE stage_id = $1 AND part = $2 AND place = $3;

-- name: delete_piece
DELETE FROM piece WHERE stage_id = $1 AND part = $2 AND place = $3;

-- name: delete_pieces
-- At most $2 pieces of the publication's stages.
DELETE FROM piece WHERE (stage_id, part, place) IN (
    SELECT held.stage_id, held.part, held.place FROM stage JOIN piece AS held ON held.stage_id = stage.stage_id
    WHERE stage.publication = $1 LIMIT $2
) RETURNING 1;

-- name: delete_stages
DELETE FROM stage WHERE stage_id IN (SELECT stage_id FROM stage WHERE publication = $1 LIMIT $2) RETURNING 1;

-- name: delete_publication
DELETE FROM publication WHERE number = $1;

-- name: empty_publications
UPDATE publication SET stages = '{}' WHERE qp = $1 AND stages <> '{}';

-- name: pending_publication
-- The first publication of a writer that has stages left.
SELECT number, qp, writer_id, batch, CAST(stages AS text), messages_per_s_max, next_at FROM publication
WHERE writer_id = $1 AND stages <> '{}' ORDER BY number LIMIT 1;

-- name: due_publication
-- The publication whose slice has waited longest; those of one writer are published in order.
SELECT number, qp, writer_id, batch, CAST(stages AS text), messages_per_s_max, next_at FROM publication AS mine
WHERE next_at <= $1 AND (stages = '{}' OR NOT EXISTS (
    SELECT 1 FROM publication AS before
    WHERE before.writer_id = mine.writer_id AND before.number < mine.number AND before.stages <> '{}'
)) ORDER BY next_at LIMIT 1;
