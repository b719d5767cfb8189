-- The one clock of a store, for all its nodes. Tests replace it by one that reads a table.

CREATE FUNCTION mq.now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;
