-- name: all_topics
SELECT number, name, settings, created_at_ms, modified_at_ms FROM topic;

-- name: insert_topic
INSERT INTO topic (name, settings, created_at_ms, modified_at_ms) VALUES (?, ?, ?, ?) RETURNING number;

-- name: update_topic
UPDATE topic SET settings = ?, modified_at_ms = ? WHERE number = ?;

-- name: delete_topic
DELETE FROM topic WHERE number = ?;

-- name: all_subscriptions
SELECT topic, content, created_at_ms, modified_at_ms FROM subscription ORDER BY topic, name;

-- name: insert_subscription
INSERT INTO subscription (topic, name, content, push_queue, created_at_ms, modified_at_ms) VALUES (?, ?, ?, ?, ?, ?);

-- name: update_subscription
UPDATE subscription SET content = ?, modified_at_ms = ? WHERE topic = ? AND name = ?;

-- name: delete_subscription
DELETE FROM subscription WHERE topic = ? AND name = ?;

-- name: delete_subscriptions_of
DELETE FROM subscription WHERE topic = ?;
