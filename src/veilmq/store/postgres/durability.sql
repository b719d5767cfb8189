-- How commits of a connection are made durable, and what the doctor says beside its findings.

-- name: be_durable
-- What the operator has set, unless it waits for less than the disk of the server and of its synchronous standbys.
SELECT set_config('synchronous_commit', CASE WHEN level IN ('off', 'local') THEN 'on' ELSE level END, false)
FROM current_setting('synchronous_commit') AS level

-- name: promise
-- What the connection waits for, and what that is worth; reset_val is what it would wait for without the above.
SELECT setting AS waits, reset_val AS set_to, current_setting('synchronous_standby_names') AS standbys,
    current_setting('fsync')::boolean AS fsync, current_setting('full_page_writes')::boolean AS full_page_writes
FROM pg_settings WHERE name = 'synchronous_commit'

-- name: facts
SELECT 'PostgreSQL ' || current_setting('server_version') AS server, (SELECT max(number) FROM mq.migration) AS format,
    (SELECT count(*) FROM mq.queue) AS queues, (SELECT count(*) FROM mq.message WHERE qp > 0) AS messages, (
        SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r'
    ) AS schema_bytes, count(*) || ' of ' || current_setting('max_connections') AS connections,
    current_setting('autovacuum_naptime') AS autovacuum_naptime, coalesce(
        max(mq.now_ms() / 1000 - extract(epoch FROM xact_start)::bigint) FILTER (WHERE pid <> pg_backend_pid()), 0
    ) AS oldest_transaction_s
FROM pg_stat_activity WHERE backend_type = 'client backend'
