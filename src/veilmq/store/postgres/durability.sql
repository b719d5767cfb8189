-- The durability of commits, running nodes, and the facts of the doctor's report.

-- name: be_durable
-- Keep the operator's setting, but replace levels that do not wait for the disks of the server and its synchronous standbys.
SELECT set_config('synchronous_commit', CASE WHEN level IN ('off', 'local') THEN 'on' ELSE level END, false)
FROM current_setting('synchronous_commit') AS level

-- name: commit_durability
-- The durability of the connection; reset_val is the operator's setting, without be_durable.
SELECT setting AS waits, reset_val AS set_to, current_setting('synchronous_standby_names') AS standbys,
    current_setting('fsync')::boolean AS fsync, current_setting('full_page_writes')::boolean AS full_page_writes
FROM pg_settings WHERE name = 'synchronous_commit'

-- name: nodes
-- The number of running nodes, without those that wait for this transaction at their start.
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'veilmq%' AND pid <> pg_backend_pid()
AND pg_backend_pid() <> ALL (pg_blocking_pids(pid))

-- name: facts
SELECT 'PostgreSQL ' || current_setting('server_version') AS server, (SELECT max(number) FROM mq.migration) AS format,
    (SELECT count(*) FROM mq.queue) AS queues, (SELECT count(*) FROM mq.message WHERE qp > 0) AS messages, (
        SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r'
    ) AS schema_bytes, count(*) || ' of ' || current_setting('max_connections') AS connections,
    current_setting('autovacuum_naptime') AS autovacuum_naptime, coalesce(
        max(mq.now_ms() / 1000 - extract(epoch FROM xact_start)::bigint) FILTER (WHERE pid <> pg_backend_pid()), 0
    ) AS oldest_transaction_s
FROM pg_stat_activity WHERE backend_type = 'client backend'
