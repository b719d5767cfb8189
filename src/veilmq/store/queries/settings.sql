-- Named values: keys, accounts, the node of the events.

-- name: setting
SELECT value FROM setting WHERE name = $1;

-- name: put_setting
INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: copied_values
SELECT name, value FROM setting WHERE name IN ('receipt_key', 'token_key') OR name LIKE 'account %';
