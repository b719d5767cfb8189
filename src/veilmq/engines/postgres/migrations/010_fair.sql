-- Fair queues: messages of standard queues that name a group.
--
-- Their priority stands here as 100 more. So whoever goes through the priorities of a partition meets them, behind the others;
-- a receive that shares fairly goes by the turns of their groups instead.

ALTER TABLE mq.msg ADD COLUMN group_key bigint;
CREATE INDEX msg_group ON mq.msg (qp, priority, group_key, visible_at, seq) WHERE group_key IS NOT NULL;

-- A row for each group that has messages: none of them is visible before that instant. It may be too early, never too late.
-- sent_at is when the group last sent, to half a minute.
CREATE TABLE mq.fair_turn (
    qp bigint NOT NULL,
    group_key bigint NOT NULL,
    priority smallint NOT NULL,
    at bigint NOT NULL,
    sent_at bigint NOT NULL,
    PRIMARY KEY (qp, group_key, priority)
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
CREATE INDEX fair_turn_at ON mq.fair_turn (qp, priority, at);

-- What makes a turn later locks the group against whoever makes one earlier, who then waits, and looks again.
CREATE FUNCTION mq.fair_touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashint8extended(NEW.group_key, NEW.qp));
    INSERT INTO mq.fair_turn AS turn (qp, group_key, priority, at, sent_at)
    SELECT NEW.qp, NEW.group_key, NEW.priority, NEW.visible_at, NEW.sent_at
    WHERE NOT EXISTS (
        SELECT FROM mq.fair_turn WHERE qp = NEW.qp AND group_key = NEW.group_key AND priority + 0 = NEW.priority
            AND at + 0 <= NEW.visible_at AND sent_at > NEW.sent_at - 30000 -- + 0: by the key, not by the instant
    )
    ON CONFLICT (qp, group_key, priority) DO UPDATE SET
        at = least(turn.at, excluded.at), sent_at = greatest(turn.sent_at, excluded.sent_at);
    RETURN NULL;
END $$;
CREATE TRIGGER fair_sent AFTER INSERT ON mq.msg
    FOR EACH ROW WHEN (NEW.group_key IS NOT NULL) EXECUTE FUNCTION mq.fair_touch();
CREATE TRIGGER fair_earlier AFTER UPDATE ON mq.msg
    FOR EACH ROW WHEN (NEW.group_key IS NOT NULL AND NEW.visible_at < OLD.visible_at) EXECUTE FUNCTION mq.fair_touch();

-- Has the turns of those groups say when their first messages are visible; removes the turns of groups without any. A group
-- that somebody sends to stays as it is.
CREATE FUNCTION mq.fair_settle(p_qp bigint, p_groups bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_mine bigint[] := ARRAY(
        SELECT each FROM (SELECT DISTINCT each FROM unnest(p_groups) AS each) AS its
        WHERE pg_try_advisory_xact_lock(hashint8extended(each, p_qp))
    );
BEGIN
    WITH head AS MATERIALIZED (
        SELECT turn.group_key, turn.priority, (
            SELECT msg.visible_at FROM mq.msg
            WHERE msg.qp = p_qp AND msg.priority = turn.priority AND msg.group_key = turn.group_key AND msg.visible_at >= turn.at
            ORDER BY msg.visible_at LIMIT 1
        ) AS at
        FROM unnest(v_mine) AS mine (group_key) CROSS JOIN LATERAL (
            SELECT * FROM mq.fair_turn WHERE qp = p_qp AND fair_turn.group_key = mine.group_key OFFSET 0 -- one by one
        ) AS turn
    ), ended AS (
        DELETE FROM mq.fair_turn AS turn USING head
        WHERE turn.qp = p_qp AND turn.group_key = ANY(v_mine) AND turn.group_key = head.group_key AND turn.priority = head.priority AND head.at IS NULL
    )
    UPDATE mq.fair_turn AS turn SET at = head.at FROM head
    WHERE turn.qp = p_qp AND turn.group_key = ANY(v_mine) AND turn.group_key = head.group_key AND turn.priority = head.priority AND head.at > turn.at;
END $$;

-- The first p_count visible messages of one priority but for those of noisy groups, as they became visible; with p_leases they
-- are locked, what others have locked is passed over, and turns that were too early are put right.
CREATE FUNCTION mq.fair_quiet(
    p_part mq.part, p_priority int, p_count int, p_low bigint, p_retention bigint, p_noisy bigint[], p_not bigint[],
    p_leases boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_lane smallint := p_priority + 100;
    v_turns int := greatest(p_count, 10);
    v_seen int;
    v_tried bigint[] := p_not;
    v_chosen bigint[] := '{}';
    v_left int;
    v_ready bigint[];
    v_early bigint[];
BEGIN
    LOOP
        v_left := p_count - cardinality(v_chosen);
        EXIT WHEN v_left <= 0;
        WITH turn AS MATERIALIZED (
            SELECT group_key, at FROM mq.fair_turn
            WHERE qp = p_part.qp AND priority = v_lane AND at <= v_now AND group_key <> ALL(p_noisy)
            ORDER BY at LIMIT v_turns
        ), ready AS MATERIALIZED (
            SELECT turn.group_key, turn.at, first.seq, first.visible_at
            FROM turn LEFT JOIN LATERAL (
                SELECT msg.seq, msg.visible_at FROM mq.msg
                WHERE msg.qp = p_part.qp AND msg.priority = v_lane AND msg.group_key = turn.group_key
                    AND msg.visible_at >= turn.at AND msg.visible_at <= v_now AND msg.sent_at > v_now - p_retention
                    AND (msg.sent_at > p_part.ended_until OR msg.seq >= p_part.ended_before) AND msg.seq <> ALL(v_tried)
                ORDER BY msg.visible_at, msg.seq LIMIT v_left
            ) AS first ON true
            UNION ALL (
                SELECT NULL, NULL, msg.seq, msg.visible_at FROM mq.msg
                WHERE msg.qp = p_part.qp AND msg.priority = p_priority::smallint
                    AND msg.visible_at >= p_low AND msg.visible_at <= v_now AND msg.sent_at > v_now - p_retention
                    AND (msg.sent_at > p_part.ended_until OR msg.seq >= p_part.ended_before) AND msg.seq <> ALL(v_tried)
                ORDER BY msg.visible_at, msg.seq LIMIT v_left
            )
        ), seen AS (
            SELECT count(*) AS turns, max(at) AS until FROM turn
        )
        SELECT seen.turns,
            ARRAY(
                SELECT seq FROM ready WHERE seq IS NOT NULL AND (seen.turns < v_turns OR visible_at <= seen.until)
                ORDER BY visible_at, seq LIMIT v_left
            ),
            ARRAY(SELECT group_key FROM ready GROUP BY group_key HAVING coalesce(min(visible_at), v_now + 1) > min(at))
        INTO v_seen, v_ready, v_early FROM seen;
        v_tried := v_tried || v_ready;
        IF p_leases THEN
            v_chosen := v_chosen || ARRAY(
                SELECT seq FROM (
                    SELECT seq, visible_at FROM mq.msg
                    WHERE qp = p_part.qp AND seq = ANY(v_ready) AND visible_at <= v_now
                    FOR UPDATE SKIP LOCKED
                ) AS locked
                ORDER BY visible_at, seq
            );
            IF v_early <> '{}' THEN
                PERFORM mq.fair_settle(p_part.qp, v_early);
            END IF;
        ELSE
            v_chosen := v_chosen || v_ready;
        END IF;
        CONTINUE WHEN cardinality(v_ready) = v_left;
        EXIT WHEN v_seen < v_turns;
        v_turns := 4 * v_turns; -- the turns seen were too early
    END LOOP;
    RETURN v_chosen;
END $$;

-- The first p_count visible messages of one priority of noisy groups: of the first group as many as it has, then of the next.
CREATE FUNCTION mq.fair_noisy(
    p_part mq.part, p_priority int, p_count int, p_retention bigint, p_noisy bigint[], p_not bigint[], p_leases boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_lane smallint := p_priority + 100;
    v_chosen bigint[] := '{}';
    v_met bigint[] := '{}';
    v_group bigint;
    v_at bigint;
BEGIN
    FOREACH v_group IN ARRAY p_noisy LOOP
        EXIT WHEN cardinality(v_chosen) >= p_count;
        SELECT at INTO v_at FROM mq.fair_turn WHERE qp = p_part.qp AND group_key = v_group AND priority + 0 = v_lane AND at + 0 <= v_now;
        CONTINUE WHEN NOT FOUND;
        v_met := v_met || v_group;
        IF p_leases THEN
            v_chosen := v_chosen || ARRAY(
                SELECT seq FROM mq.msg
                WHERE qp = p_part.qp AND priority = v_lane AND group_key = v_group AND visible_at >= v_at AND visible_at <= v_now
                    AND sent_at > v_now - p_retention AND (sent_at > p_part.ended_until OR seq >= p_part.ended_before)
                    AND seq <> ALL(p_not)
                ORDER BY visible_at, seq LIMIT p_count - cardinality(v_chosen)
                FOR UPDATE SKIP LOCKED
            );
        ELSE
            v_chosen := v_chosen || ARRAY(
                SELECT seq FROM mq.msg
                WHERE qp = p_part.qp AND priority = v_lane AND group_key = v_group AND visible_at >= v_at AND visible_at <= v_now
                    AND sent_at > v_now - p_retention AND (sent_at > p_part.ended_until OR seq >= p_part.ended_before)
                    AND seq <> ALL(p_not)
                ORDER BY visible_at, seq LIMIT p_count - cardinality(v_chosen)
            );
        END IF;
    END LOOP;
    IF p_leases AND v_met <> '{}' THEN
        PERFORM mq.fair_settle(p_part.qp, v_met);
    END IF;
    RETURN v_chosen;
END $$;

-- The positions of the messages that a receive of p_count gives, in its order; p_low are the low-water marks of messages without
-- a group, p_noisy the noisy groups, those that come first among them first, p_not what is had already.
CREATE FUNCTION mq.fair_choose(
    p_qp bigint, p_count int, p_low bigint[], p_retention bigint, p_noisy bigint[], p_not bigint[], p_leases boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_part mq.part;
    v_priority int;
    v_chosen bigint[] := '{}';
BEGIN
    SELECT * INTO v_part FROM mq.part WHERE qp = p_qp AND NOT retired;
    FOR v_priority IN SELECT DISTINCT each % 100 AS priority FROM unnest(v_part.priorities) AS each ORDER BY priority LOOP
        v_chosen := v_chosen || mq.fair_quiet(
            v_part, v_priority, p_count - cardinality(v_chosen), p_low[v_priority], p_retention, p_noisy, p_not, p_leases
        );
        v_chosen := v_chosen || mq.fair_noisy(
            v_part, v_priority, p_count - cardinality(v_chosen), p_retention, p_noisy, p_not, p_leases
        );
        EXIT WHEN cardinality(v_chosen) >= p_count;
    END LOOP;
    RETURN v_chosen;
END $$;

-- Looks at up to p_count turns that are due, and removes those of groups without messages: retention left them behind. Tells
-- how many those were.
CREATE FUNCTION mq.fair_sweep(p_qp bigint, p_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_lane smallint;
    v_empty bigint[] := '{}';
BEGIN
    FOR v_lane IN SELECT each FROM mq.part, unnest(priorities) AS each WHERE qp = p_qp AND each > 100 LOOP
        v_empty := v_empty || ARRAY(
            SELECT due.group_key FROM (
                SELECT group_key FROM mq.fair_turn WHERE qp = p_qp AND priority = v_lane AND at <= mq.now_ms()
                ORDER BY at LIMIT p_count
            ) AS due
            WHERE NOT EXISTS (SELECT FROM mq.msg WHERE qp = p_qp AND priority = v_lane AND msg.group_key = due.group_key)
        );
    END LOOP;
    IF v_empty <> '{}' THEN
        PERFORM mq.fair_settle(p_qp, v_empty);
    END IF;
    RETURN cardinality(v_empty);
END $$;
