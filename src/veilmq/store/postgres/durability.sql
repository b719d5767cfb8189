-- How commits of a connection are made durable.

-- name: be_durable
-- What the operator has set, unless it waits for less than the disk of the server and of its synchronous standbys.
SELECT set_config('synchronous_commit', CASE WHEN level IN ('off', 'local') THEN 'on' ELSE level END, false)
FROM current_setting('synchronous_commit') AS level

-- name: promise
-- What the connection waits for, and what that is worth; reset_val is what it would wait for without the above.
SELECT setting AS waits, reset_val AS set_to, current_setting('synchronous_standby_names') AS standbys,
    current_setting('fsync')::boolean AS fsync, current_setting('full_page_writes')::boolean AS full_page_writes
FROM pg_settings WHERE name = 'synchronous_commit'
