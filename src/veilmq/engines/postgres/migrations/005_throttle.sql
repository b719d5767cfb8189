-- The receives of the last second, by the instants at which they were asked; by the first partition of the queue.
CREATE UNLOGGED TABLE mq.throttle (
    qp bigint PRIMARY KEY,
    instants bigint[] NOT NULL DEFAULT '{}',
    counts int[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- Counts up to p_asked more receives, as many as p_max allows in any p_period ms; tells how many.
CREATE FUNCTION mq.admit(p_qp bigint, p_asked int, p_max int, p_period bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_instants bigint[];
    v_counts int[];
    v_admitted int;
BEGIN
    INSERT INTO mq.throttle (qp) VALUES (p_qp) ON CONFLICT DO NOTHING;
    PERFORM FROM mq.throttle WHERE qp = p_qp FOR UPDATE;
    SELECT coalesce(array_agg(instant ORDER BY place), '{}'), coalesce(array_agg(times ORDER BY place), '{}'),
        greatest(0, least(p_asked, p_max - coalesce(sum(times), 0)))
    INTO v_instants, v_counts, v_admitted
    FROM mq.throttle, unnest(instants, counts) WITH ORDINALITY AS asked (instant, times, place)
    WHERE qp = p_qp AND instant > v_now - p_period;
    IF v_admitted > 0 AND v_instants[cardinality(v_instants)] >= v_now THEN
        v_counts[cardinality(v_counts)] := v_counts[cardinality(v_counts)] + v_admitted;
    ELSIF v_admitted > 0 THEN
        v_instants := v_instants || v_now;
        v_counts := v_counts || v_admitted;
    END IF;
    UPDATE mq.throttle SET instants = v_instants, counts = v_counts WHERE qp = p_qp;
    RETURN v_admitted;
END $$;
