-- Topics and subscriptions: control plane. Everything here is rare, but for find_topic and subscriptions, which every publication asks.

-- name: find_topic
SELECT topic_id, name, settings, created_at, modified_at, mq.now_ms() AS now FROM mq.topic WHERE name = $1

-- name: lock_topic
SELECT topic_id, name, settings, created_at, modified_at, mq.now_ms() AS now FROM mq.topic WHERE name = $1 FOR UPDATE

-- name: list_topics
SELECT topic_id, name, settings, created_at, modified_at, mq.now_ms() AS now FROM mq.topic
WHERE name > $2 AND name >= $1 AND starts_with(name, $1)
ORDER BY name LIMIT $3

-- name: insert_topic
-- Nothing is inserted where the name exists: another node was faster.
INSERT INTO mq.topic (name, settings, created_at, modified_at)
SELECT $1, $2, now, now FROM (SELECT mq.now_ms() AS now) clock
ON CONFLICT (name) DO NOTHING
RETURNING topic_id, name, settings, created_at, modified_at, modified_at AS now

-- name: update_topic
UPDATE mq.topic SET settings = $2, modified_at = mq.now_ms() WHERE topic_id = $1

-- name: delete_topic
DELETE FROM mq.topic WHERE topic_id = $1

-- name: subscriptions
SELECT content, created_at, modified_at FROM mq.subscription WHERE topic_id = $1 ORDER BY name

-- name: find_subscription
SELECT content, created_at, modified_at FROM mq.subscription WHERE topic_id = $1 AND name = $2

-- name: list_subscriptions
SELECT content, created_at, modified_at FROM mq.subscription
WHERE topic_id = $1 AND name > $3 AND name >= $2 AND starts_with(name, $2)
ORDER BY name LIMIT $4

-- name: count_subscriptions
SELECT count(*) FROM mq.subscription WHERE topic_id = $1

-- name: pushes
SELECT content FROM mq.subscription WHERE pushed ORDER BY topic_id, name

-- name: insert_subscription
INSERT INTO mq.subscription (topic_id, name, content, pushed, created_at, modified_at)
SELECT $1, $2, $3, $4, now, now FROM (SELECT mq.now_ms() AS now) clock
RETURNING content, created_at, modified_at

-- name: update_subscription
UPDATE mq.subscription SET content = $3, modified_at = mq.now_ms() WHERE topic_id = $1 AND name = $2

-- name: delete_subscription
DELETE FROM mq.subscription WHERE topic_id = $1 AND name = $2
