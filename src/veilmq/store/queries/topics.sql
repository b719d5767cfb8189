-- Topics and subscriptions. Only topic and subscriptions are frequent: every publication reads them.

-- name: topic
SELECT topic_id, name, settings, created_at, modified_at FROM topic WHERE name = $1;

-- name: topics
SELECT topic_id, name, settings, created_at, modified_at FROM topic
WHERE name >= $1 AND name > $2 AND name < $3 ORDER BY name LIMIT $4;

-- name: insert_topic
-- Inserts nothing if another transaction has inserted the name first.
INSERT INTO topic (name, settings, created_at, modified_at) VALUES ($1, $2, $3, $3) ON CONFLICT (name) DO NOTHING
RETURNING topic_id, name, settings, created_at, modified_at;

-- name: update_topic
UPDATE topic SET settings = $2, modified_at = $3 WHERE topic_id = $1;

-- name: delete_topic
DELETE FROM topic WHERE topic_id = $1;

-- name: subscription
SELECT content, created_at, modified_at FROM subscription WHERE topic_id = $1 AND name = $2;

-- name: subscriptions
SELECT content, created_at, modified_at FROM subscription
WHERE topic_id = $1 AND name >= $2 AND name > $3 AND name < $4 ORDER BY name LIMIT $5;

-- name: pushes
SELECT content FROM subscription WHERE pushed ORDER BY topic_id, name;

-- name: insert_subscription
INSERT INTO subscription (topic_id, name, content, pushed, created_at, modified_at) VALUES ($1, $2, $3, $4, $5, $5);

-- name: update_subscription
UPDATE subscription SET content = $3, modified_at = $4 WHERE topic_id = $1 AND name = $2;

-- name: delete_subscriptions
-- The subscription $2; all if it is null.
DELETE FROM subscription WHERE topic_id = $1 AND name = coalesce($2, name);
