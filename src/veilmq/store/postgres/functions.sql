-- The functions and triggers of a database. The script replaces those of any earlier format. The first argument is the partition;
-- the only clock is mq.now_ms.

CREATE OR REPLACE FUNCTION mq.now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (date_part('epoch', statement_timestamp()) * 1000)::bigint
$$;

-- The messages of queues of both types.
CREATE OR REPLACE VIEW mq.message AS
SELECT qp, seq, visible_at, claim, id, properties, body FROM mq.msg
UNION ALL SELECT qp, seq, visible_at, claim, id, properties, body FROM mq.fifo_msg;

-- Return a position behind the last one of the group that no visible row of the table has.
CREATE OR REPLACE FUNCTION mq.fifo_position(p_qp bigint, p_group text, p_now bigint, p_counter bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint := (p_now << 20) | (p_counter & 1048575); v_last bigint;
BEGIN
    SELECT last_seq INTO v_last FROM mq.fifo_group WHERE qp = p_qp AND group_id = p_group;
    IF v_last >= v_seq THEN
        v_seq := v_last + 1;
        WHILE EXISTS (SELECT FROM mq.fifo_msg WHERE qp = p_qp AND seq = v_seq) LOOP
            v_seq := v_seq + 1;
        END LOOP;
    END IF;
    RETURN v_seq;
END $$;

-- Send messages in the order of the arrays. p_counter continues between the calls of a node. A message without a key is not
-- deduplicated. A retired partition takes no messages.
CREATE OR REPLACE FUNCTION mq.fifo_send(
    p_qp bigint, p_origin bigint, p_counter bigint, p_remember bigint, p_groups text[], p_keys bytea[], p_ids bytea[],
    p_properties bytea[], p_bodies text[], p_delays bigint[]
) RETURNS TABLE(place integer, o_seq bigint, o_id bytea, o_visible_at bigint, o_sent_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint; v_delay bigint := (SELECT delay FROM mq.part WHERE qp = p_qp AND NOT retired);
BEGIN
    IF v_delay IS NULL THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT DISTINCT hashtextextended(each, p_qp) AS lock FROM unnest(p_groups) AS each ORDER BY lock
    ) AS of_group;
    PERFORM FROM (
        SELECT DISTINCT each COLLATE "C" AS name FROM unnest(p_groups) AS each ORDER BY name
    ) AS of_message CROSS JOIN LATERAL (
        SELECT FROM mq.fifo_group WHERE qp = p_qp AND group_id = of_message.name FOR UPDATE -- one by one, in their order
    ) AS locked;
    v_now := mq.now_ms();
    FOR place IN 1..cardinality(p_groups) LOOP
        o_id := p_ids[place];
        o_sent_at := v_now;
        o_visible_at := v_now + greatest(coalesce(p_delays[place], v_delay), 0);
        o_seq := mq.fifo_position(p_qp, p_groups[place], v_now, p_counter + place);
        IF p_keys[place] IS NOT NULL THEN
            INSERT INTO mq.accepted AS before (qp, key, expires_at, seq, id)
            VALUES (p_origin, p_keys[place], v_now + p_remember, o_seq, o_id)
            ON CONFLICT (qp, key) DO UPDATE SET expires_at = excluded.expires_at, seq = excluded.seq, id = excluded.id
                WHERE before.expires_at <= v_now OR before.id = excluded.id; -- a message that a forward returns is no duplicate
            IF NOT FOUND THEN
                SELECT accepted.seq, accepted.id INTO o_seq, o_id
                FROM mq.accepted WHERE qp = p_origin AND key = p_keys[place];
                o_visible_at := o_sent_at;
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        INSERT INTO mq.fifo_msg (qp, seq, visible_at, sent_at, group_id, id, properties, body)
        VALUES (p_qp, o_seq, v_now + coalesce(p_delays[place], 0), v_now, p_groups[place], o_id, p_properties[place], p_bodies[place]);
        o_seq := mq.fifo_join(p_qp, p_groups[place], o_seq, o_visible_at);
        RETURN NEXT;
    END LOOP;
END $$;

-- Recompute when a group, whose row the caller has locked, is next eligible: when the lease of its last message in flight ends, or its
-- retention (claimed messages have neither end); with none in flight, when the last returned message became visible; without
-- returned ones, when the first other message is visible. Skips at most 100 messages, and reads none that was sent after the first
-- visible one became visible. Deletes an empty group. p_leased: what a receive has just leased; null for the recorded messages.
CREATE OR REPLACE FUNCTION mq.fifo_settle(p_qp bigint, p_group text, p_retention bigint, p_leased bigint[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms(); v_delay bigint := coalesce((SELECT delay FROM mq.part WHERE qp = p_qp), 0);
    v_kept bigint := mq.retention_now() - p_retention; v_leased bigint[]; v_until bigint; v_first bigint;
    v_head bigint; v_came_back bool := false; each record;
BEGIN
    SELECT array_agg(msg.seq ORDER BY msg.seq),
        max(CASE WHEN msg.claim IS NULL THEN least(msg.visible_at, msg.sent_at + p_retention) ELSE msg.visible_at END)
    INTO v_leased, v_until
    FROM mq.fifo_group AS of_group CROSS JOIN unnest(coalesce(p_leased, of_group.leased)) AS lease (seq) CROSS JOIN LATERAL (
        SELECT * FROM mq.fifo_msg WHERE qp = p_qp AND fifo_msg.seq = lease.seq OFFSET 0 -- one by one
    ) AS msg
    WHERE of_group.qp = p_qp AND of_group.group_id = p_group AND msg.visible_at > v_now AND msg.receive_count > 0
        AND (msg.sent_at > v_kept OR msg.claim IS NOT NULL);
    FOR each IN SELECT seq, sent_at, receive_count, mq.due(visible_at, sent_at, receive_count, v_delay) AS visible_at FROM mq.fifo_msg
        WHERE qp = p_qp AND group_id = p_group AND seq >= ((v_kept + 1) << 20) AND sent_at > v_kept AND claim IS NULL ORDER BY seq
        LIMIT 101 + coalesce(cardinality(v_leased), 0)
    LOOP
        CONTINUE WHEN each.seq = ANY(v_leased);
        IF each.receive_count > 0 THEN
            v_head := CASE WHEN v_came_back THEN v_head ELSE each.seq END;
            v_first := CASE WHEN v_came_back THEN greatest(v_first, each.visible_at) ELSE each.visible_at END;
            v_came_back := true;
        ELSIF v_leased IS NULL AND (v_first IS NULL OR each.visible_at < v_first AND NOT v_came_back) THEN
            v_first := greatest(each.visible_at, each.sent_at);
            v_head := each.seq;
        END IF;
        EXIT WHEN each.visible_at <= v_now
            AND (v_leased IS NOT NULL OR each.receive_count = 0 AND each.sent_at >= v_first);
    END LOOP;
    IF v_leased IS NULL AND coalesce(v_first, v_now + 1) > v_now THEN
        -- No visible message, unless another transaction is sending to the group and has not committed yet.
        IF NOT pg_try_advisory_xact_lock(hashtextextended(p_group, p_qp)) THEN
            v_first := v_now;
        ELSIF v_first IS NULL THEN
            DELETE FROM mq.fifo_group WHERE qp = p_qp AND group_id = p_group
                AND NOT EXISTS (SELECT FROM mq.fifo_msg WHERE qp = p_qp AND group_id = p_group);
            IF FOUND THEN RETURN; END IF;
            v_first := v_now;
        END IF;
    END IF;
    UPDATE mq.fifo_group SET
        leased = coalesce(v_leased, '{}'), eligible_at = coalesce(v_until, v_first), head = coalesce(least(v_head, v_leased[1]), head)
    WHERE qp = p_qp AND group_id = p_group;
END $$;

-- Move a message to another partition: as a dead letter of p_source, with its id and a new age, or, if p_source is null, as a new
-- message with the given id and properties. Return its group; null if another node moved it first.
CREATE OR REPLACE FUNCTION mq.fifo_move(
    p_qp bigint, p_seq bigint, p_target bigint, p_source text, p_counter bigint, p_id bytea, p_properties bytea
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms(); v_dies boolean := p_source IS NOT NULL; v_seq bigint; v_msg mq.fifo_msg;
BEGIN
    DELETE FROM mq.fifo_msg WHERE qp = p_qp AND seq = p_seq RETURNING * INTO v_msg;
    IF FOUND THEN
        v_seq := mq.fifo_position(p_target, v_msg.group_id, v_now, p_counter);
        INSERT INTO mq.fifo_msg (
            qp, seq, visible_at, sent_at, first_received_at, group_id, id, properties, source, receives_before, body
        ) VALUES (
            p_target, v_seq, v_now - 1, v_now, CASE WHEN v_dies THEN v_msg.first_received_at END, v_msg.group_id,
            coalesce(p_id, v_msg.id), CASE WHEN v_dies THEN v_msg.properties ELSE p_properties END, p_source,
            CASE WHEN v_dies THEN v_msg.receives_before + v_msg.receive_count ELSE 0 END, v_msg.body
        );
        v_seq := mq.fifo_join(p_target, v_msg.group_id, v_seq, v_now);
    END IF;
    RETURN v_msg.group_id;
END $$;

-- Lock the groups of messages, and return them.
CREATE OR REPLACE FUNCTION mq.fifo_lock(p_qp bigint, p_seqs bigint[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_groups text[];
BEGIN
    SELECT array_agg(DISTINCT group_id ORDER BY group_id) INTO v_groups
    FROM mq.fifo_msg WHERE qp = p_qp AND seq = ANY(p_seqs);
    PERFORM FROM unnest(v_groups) AS of_message (name) CROSS JOIN LATERAL (
        SELECT FROM mq.fifo_group WHERE qp = p_qp AND group_id = of_message.name FOR UPDATE -- one by one, in their order
    ) AS locked;
    RETURN coalesce(v_groups, '{}');
END $$;

-- Set the timeout of each message from now on, and recompute its group: for messages just received, by a visibility rule, or for those
-- of an attempt. An attempt changes nothing if any message does not match p_generations, p_epochs and p_deadlines.
CREATE OR REPLACE FUNCTION mq.fifo_hide(
    p_qp bigint, p_seqs bigint[], p_timeouts bigint[], p_lease_max bigint, p_retention bigint,
    p_generations bigint[] DEFAULT NULL, p_epochs bigint[] DEFAULT NULL, p_deadlines bigint[] DEFAULT NULL
) RETURNS SETOF mq.fifo_msg LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms(); v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
BEGIN
    IF p_generations IS NOT NULL AND cardinality(p_seqs) > (
        SELECT count(*) FROM unnest(p_seqs, p_generations, p_epochs, p_deadlines) AS given (seq, generation, epoch, deadline)
            JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = given.seq
                AND msg.generation = given.generation AND msg.epoch = given.epoch AND msg.visible_at = given.deadline
        WHERE msg.visible_at > v_now AND msg.sent_at > v_now - p_retention
    ) THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE mq.fifo_msg AS msg SET visible_at = least(v_now + asked.timeout, msg.received_at + p_lease_max)
    FROM unnest(p_seqs, p_timeouts) AS asked (seq, timeout)
    WHERE msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq RETURNING msg.*;
    PERFORM mq.fifo_settle(p_qp, each, p_retention) FROM unnest(v_groups) AS each;
END $$;

-- Admit up to p_asked receives, at most p_max in any p_period ms; return the number of admitted ones.
CREATE OR REPLACE FUNCTION mq.admit(p_qp bigint, p_asked integer, p_max integer, p_period bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms(); v_instants bigint[]; v_counts int[]; v_admitted int;
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

-- Add a message at p_seq to its group. Return p_seq: an assignment is a cheaper call than PERFORM, which is a statement.
CREATE OR REPLACE FUNCTION mq.fifo_join(p_qp bigint, p_group text, p_seq bigint, p_visible_at bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO mq.fifo_group AS of_group (qp, group_id, eligible_at, head, last_seq)
    VALUES (p_qp, p_group, p_visible_at, p_seq, p_seq)
    ON CONFLICT (qp, group_id) DO UPDATE SET last_seq = excluded.last_seq,
        head = CASE WHEN of_group.leased = '{}' AND excluded.eligible_at < of_group.eligible_at
            THEN excluded.head ELSE of_group.head END,
        eligible_at = CASE WHEN of_group.leased = '{}'
            THEN least(of_group.eligible_at, excluded.eligible_at) ELSE of_group.eligible_at END;
    RETURN p_seq;
END $$;

-- Delete messages and recompute their groups; return the number of p_seqs. 'give_back' returns claimed messages, and deletes only
-- those past their retention. 'expire' keeps claimed messages, and writes the events of receipts if p_log names a logged queue.
CREATE OR REPLACE FUNCTION mq.fifo_remove(
    p_qp bigint, p_seqs bigint[], p_retention bigint, p_how text DEFAULT 'delete', p_origin bigint DEFAULT NULL, p_log text DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_kept bigint := greatest(mq.retention_now() - p_retention, (SELECT ended_until FROM mq.part WHERE qp = p_qp));
    v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
BEGIN
    IF p_how = 'give_back' THEN
        UPDATE mq.fifo_msg SET visible_at = mq.now_ms(), claim = NULL, shard = NULL WHERE qp = p_qp AND seq = ANY(p_seqs);
    END IF;
    IF p_log IS NOT NULL THEN PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'supersede', p_seqs, p_retention); END IF;
    DELETE FROM mq.fifo_msg WHERE qp = p_qp AND seq = ANY(p_seqs)
        AND (p_how <> 'give_back' OR sent_at <= v_kept) AND (p_how <> 'expire' OR claim IS NULL);
    PERFORM mq.fifo_settle(p_qp, each, p_retention) FROM unnest(v_groups) AS each;
    RETURN cardinality(p_seqs);
END $$;

-- Delete expired messages among the first 1,000 of a queue (behind claimed ones that the janitor has passed), except those of locked
-- groups: those that are left place the groups. Return the time up to which messages have expired. (EXISTS would scan the table.)
CREATE OR REPLACE FUNCTION mq.fifo_expire(p_qp bigint, p_retention bigint, p_origin bigint, p_log text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_kept bigint := mq.retention_now() - p_retention;
BEGIN
    IF (SELECT seq FROM mq.fifo_msg WHERE qp = p_qp AND seq < ((v_kept + 1) << 20) ORDER BY seq LIMIT 1) IS NOT NULL THEN
        PERFORM mq.fifo_remove(p_qp, array_agg(first.seq), p_retention, 'expire', p_origin, p_log) FROM (
            SELECT seq, group_id, sent_at, claim FROM mq.fifo_msg WHERE qp = p_qp AND seq < ((v_kept + 1) << 20)
                AND seq >= (SELECT (ended_until + 1) << 20 FROM mq.part WHERE qp = p_qp) ORDER BY seq LIMIT 1000
        ) AS first CROSS JOIN LATERAL (
            SELECT FROM mq.fifo_group WHERE qp = p_qp AND group_id = first.group_id FOR UPDATE SKIP LOCKED -- one by one
        ) AS locked WHERE first.sent_at <= v_kept AND first.claim IS NULL HAVING count(*) > 0;
    END IF;
    RETURN v_kept;
END $$;

-- Trigger: add or advance the turn of a group, which is read after fair_settle, which may postpone it: the shared lock waits for that.
CREATE OR REPLACE FUNCTION mq.fair_touch() RETURNS trigger LANGUAGE plpgsql AS $$
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

-- Set the turns of groups to the time at which their first messages are visible; delete the turns of groups without messages. Skips
-- groups that another transaction sends to.
CREATE OR REPLACE FUNCTION mq.fair_settle(p_qp bigint, p_groups bigint[]) RETURNS void LANGUAGE plpgsql AS $$
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

-- Return the positions of the first p_count visible messages of a priority, without those of noisy groups, in the order of visible_at.
-- With p_leases, lock them, skip messages that others have locked, and correct turns that were too early: at most some hundreds,
-- because each takes a lock of the server. If there are more such turns and no message was found, search without turns.
CREATE OR REPLACE FUNCTION mq.fair_quiet(
    p_part mq.part, p_priority integer, p_count integer, p_retention bigint, p_noisy bigint[], p_not bigint[], p_leases boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms(); v_lane smallint := p_priority + 100; v_turns int := greatest(p_count, 10);
    v_seen int; v_tried bigint[] := p_not; v_chosen bigint[] := '{}'; v_left int;
    v_ready bigint[]; v_early bigint[]; v_lanes smallint[] := ARRAY[p_priority]; v_most int := greatest(500, 4 * p_count);
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
                SELECT NULL, NULL, first.seq, first.visible_at FROM unnest(v_lanes) AS of_part (priority), LATERAL (
                    SELECT msg.seq, msg.visible_at FROM mq.msg
                    WHERE msg.qp = p_part.qp AND msg.priority = of_part.priority AND msg.visible_at <= v_now
                        AND msg.sent_at > v_now - p_retention AND (msg.sent_at > p_part.ended_until OR msg.seq >= p_part.ended_before) AND msg.seq <> ALL(v_tried)
                        AND (msg.group_key = ANY(p_noisy)) IS NOT TRUE
                    ORDER BY msg.visible_at, msg.seq LIMIT v_left
                ) AS first
            )
        ), seen AS (SELECT count(*) AS turns, max(at) AS until FROM turn)
        SELECT seen.turns,
            ARRAY(
                SELECT seq FROM ready
                WHERE seq IS NOT NULL AND (seen.turns < v_turns OR v_turns = 0 OR visible_at <= seen.until)
                ORDER BY visible_at, seq LIMIT v_left
            ),
            ARRAY(SELECT group_key FROM ready GROUP BY group_key HAVING coalesce(min(visible_at), v_now + 1) > min(at))
        INTO v_seen, v_ready, v_early FROM seen;
        v_tried := v_tried || v_ready;
        IF NOT p_leases THEN v_chosen := v_chosen || v_ready;
        ELSE
            v_chosen := v_chosen || ARRAY(
                SELECT seq FROM (
                    SELECT seq, visible_at FROM mq.msg
                    WHERE qp = p_part.qp AND seq = ANY(v_ready) AND visible_at <= v_now FOR UPDATE SKIP LOCKED
                ) AS locked ORDER BY visible_at, seq
            );
            IF v_early <> '{}' THEN PERFORM mq.fair_settle(p_part.qp, v_early); END IF;
        END IF;
        CONTINUE WHEN cardinality(v_ready) = v_left;
        EXIT WHEN v_seen < v_turns OR v_turns = 0 OR v_turns = v_most AND v_chosen <> '{}';
        v_lanes := CASE WHEN v_turns = v_most THEN v_lanes || v_lane ELSE v_lanes END;
        v_turns := CASE WHEN v_turns = v_most THEN 0 ELSE least(4 * v_turns, v_most) END; -- the turns seen were too early
    END LOOP;
    RETURN v_chosen;
END $$;

-- Return the positions of the p_count messages for a receive, in order: for each priority those of quiet groups, then all of the first
-- noisy group, then of the next. p_noisy: the noisy groups in this order; p_not: positions to exclude.
CREATE OR REPLACE FUNCTION mq.fair_choose(
    p_qp bigint, p_count integer, p_retention bigint, p_noisy bigint[], p_not bigint[], p_leases boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms(); v_part mq.part; v_priority int; v_group bigint;
    v_at bigint; v_met bigint[]; v_chosen bigint[] := '{}';
BEGIN
    SELECT * INTO v_part FROM mq.part WHERE qp = p_qp AND NOT retired;
    FOR v_priority IN SELECT DISTINCT each % 100 AS priority FROM unnest(v_part.priorities) AS each ORDER BY priority LOOP
        v_chosen := v_chosen || mq.fair_quiet(
            v_part, v_priority, p_count - cardinality(v_chosen), p_retention, p_noisy, p_not, p_leases
        );
        v_met := '{}';
        FOREACH v_group IN ARRAY p_noisy LOOP
            EXIT WHEN cardinality(v_chosen) >= p_count;
            SELECT at INTO v_at FROM mq.fair_turn
            WHERE qp = p_qp AND group_key = v_group AND priority + 0 = v_priority + 100 AND at + 0 <= v_now;
            CONTINUE WHEN NOT FOUND;
            v_met := v_met || v_group;
            IF p_leases THEN
                v_chosen := v_chosen || ARRAY(
                    SELECT seq FROM mq.msg
                    WHERE qp = p_qp AND priority = (v_priority + 100)::smallint AND group_key = v_group
                        AND visible_at >= v_at AND visible_at <= v_now AND sent_at > v_now - p_retention
                        AND (sent_at > v_part.ended_until OR seq >= v_part.ended_before) AND seq <> ALL(p_not)
                    ORDER BY visible_at, seq LIMIT p_count - cardinality(v_chosen)
                    FOR UPDATE SKIP LOCKED
                );
            ELSE
                v_chosen := v_chosen || ARRAY(
                    SELECT seq FROM mq.msg
                    WHERE qp = p_qp AND priority = (v_priority + 100)::smallint AND group_key = v_group
                        AND visible_at >= v_at AND visible_at <= v_now AND sent_at > v_now - p_retention
                        AND (sent_at > v_part.ended_until OR seq >= v_part.ended_before) AND seq <> ALL(p_not)
                    ORDER BY visible_at, seq LIMIT p_count - cardinality(v_chosen)
                );
            END IF;
        END LOOP;
        IF p_leases AND v_met <> '{}' THEN PERFORM mq.fair_settle(p_qp, v_met); END IF;
        EXIT WHEN cardinality(v_chosen) >= p_count;
    END LOOP;
    RETURN v_chosen;
END $$;

-- Return the outcomes to log for a receipt when the operation p_how is applied to its message; null if its end is logged already.
-- (Immutable, so that the planner inlines the function.)
CREATE OR REPLACE FUNCTION mq.outcomes(p_how text, p_log bigint, p_is_live boolean) RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_how = 'die' AND p_log & 3 = 1 THEN ARRAY['expired', 'dead_lettered']
        WHEN p_how = 'die' AND p_log > 0 THEN ARRAY['dead_lettered']
        WHEN p_log & 3 = 1 THEN CASE p_how
            WHEN 'delete' THEN CASE WHEN p_is_live THEN ARRAY['deleted'] ELSE ARRAY['expired', 'late_deleted'] END
            WHEN 'release' THEN ARRAY['nacked']
            WHEN 'supersede' THEN ARRAY['expired']
        END
    END
$$;

-- Return the log column after another change of the deadline, or a release.
CREATE OR REPLACE FUNCTION mq.log_moved(p_log bigint, p_is_released boolean) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_is_released THEN p_log | 2
        WHEN ((p_log >> 18) & 65535) = 65535 THEN p_log
        ELSE p_log + 262144
    END
$$;

-- Return the initial log column of the message p_place (from 1) of p_messages that one statement leased for several receives, whose
-- shares begin and end at p_firsts and p_ends.
CREATE OR REPLACE FUNCTION mq.log_begun(
    p_firsts integer[], p_ends integer[], p_place bigint, p_messages bigint, p_waited bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT 1
        | (least(least(p_ends[p_place], p_messages) - p_firsts[p_place], 255) << 2)
        | (least(p_place - 1 - p_firsts[p_place], 255) << 10)
        | (least(p_waited, 536870911) << 34)
$$;

CREATE OR REPLACE FUNCTION mq.receipt_of(p_msg mq.msg) RETURNS mq.receipt LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(
        p_msg.seq, p_msg.generation, p_msg.received_at, p_msg.visible_at, greatest(p_msg.sent_at, p_msg.seq >> 20),
        p_msg.receive_count, p_msg.log, p_msg.group_key, octet_length(p_msg.body), p_msg.id, p_msg.properties
    )::mq.receipt
$$;

-- The same for a FIFO queue.
CREATE OR REPLACE FUNCTION mq.receipt_of(p_msg mq.fifo_msg) RETURNS mq.receipt LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(
        p_msg.seq, p_msg.generation, p_msg.received_at, p_msg.visible_at, p_msg.sent_at,
        p_msg.receive_count, p_msg.log, hashtextextended(p_msg.group_id, 0), octet_length(p_msg.body), p_msg.id,
        p_msg.properties
    )::mq.receipt
$$;

-- Return the event of a receipt, for a queue with this first partition and name. p_end: when retention or a purge ended the message;
-- null for neither.
CREATE OR REPLACE FUNCTION mq.event_of(
    p_origin bigint, p_queue text, p_outcome text, p_receipt mq.receipt, p_end bigint
) RETURNS TABLE (
    qp bigint, seq bigint, generation bigint, queue text, outcome text, closed_at bigint, received_at bigint,
    visible_at bigint, came_at bigint, receive_count integer, log bigint, group_hash bigint, size integer, id bytea,
    properties bytea
) LANGUAGE sql STABLE AS $$
    SELECT p_origin, p_receipt.seq, p_receipt.generation, p_queue, p_outcome,
        CASE p_outcome WHEN 'expired' THEN its.ends_at ELSE mq.now_ms() END, its.received_at, its.ends_at,
        p_receipt.came_at, p_receipt.receive_count, p_receipt.log, p_receipt.group_hash, p_receipt.size, p_receipt.id,
        p_receipt.properties
    FROM (SELECT received.at AS received_at, greatest(received.at, least(p_receipt.visible_at, p_end)) AS ends_at
        FROM (SELECT p_receipt.received_at + (p_receipt.log >> 34) AS at) AS received) AS its
$$;

-- Write the events that the operation p_how will cause for messages of a FIFO queue, if p_queue names a logged one. p_retention: limits
-- the ends of receipts by retention; null for no limit.
CREATE OR REPLACE FUNCTION mq.fifo_note(
    p_qp bigint, p_origin bigint, p_queue text, p_how text, p_seqs bigint[], p_retention bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_queue IS NULL THEN RETURN; END IF;
    WITH noted AS (
        INSERT INTO mq.event
        SELECT event.* FROM mq.fifo_msg AS msg,
            unnest(mq.outcomes(p_how, msg.log, msg.visible_at > mq.now_ms())) AS outcome,
            mq.event_of(p_origin, p_queue, outcome, mq.receipt_of(msg), msg.sent_at + p_retention) AS event
        WHERE msg.qp = p_qp AND msg.seq = ANY(p_seqs)
        ORDER BY array_position(p_seqs, msg.seq), event.outcome <> 'expired'
        RETURNING *
    )
    INSERT INTO mq.expired_receipt
    SELECT *, mq.now_ms() FROM noted WHERE outcome = 'expired' AND p_how <> 'delete'
    ON CONFLICT DO NOTHING;
END $$;

-- Lease messages for several receives, each up to its count and all up to p_places, from groups in the order of eligibility; no two
-- receives get messages of one group. Limits: 100 dead letters or 1 MiB of them, 1,000 groups without a message, 100 delayed messages of
-- a group; the next receive continues. If dead letters were moved, the last row has no message. p_log: the name of a logged queue.
CREATE OR REPLACE FUNCTION mq.fifo_receive(
    p_qp bigint, p_counts integer[], p_places integer, p_timeout bigint, p_generation bigint, p_retention bigint,
    p_requested bigint, p_last bigint, p_receives_max integer, p_dead bigint, p_source text, p_counter bigint,
    p_origin bigint, p_log text
) RETURNS TABLE (
    seq bigint, id bytea, body text, properties bytea, sent_at bigint, first_received_at bigint, receive_count integer,
    receives_before integer, visible_at bigint, generation bigint, epoch bigint, source text, now bigint, turn integer,
    receive integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms(); v_delay bigint := coalesce((SELECT delay FROM mq.part WHERE qp = p_qp), 0);
    v_places int := p_places; v_left int; v_moved int := 0; v_moved_bytes bigint := 0; v_in_vain int := 0;
    v_kept bigint := mq.fifo_expire(p_qp, p_retention, p_origin, p_log); v_floor bigint := (v_kept + 1) << 20;
    v_group text; v_done text[] := '{}'; v_chosen bigint[]; v_given bigint[]; v_receive int := 0; v_at bigint := -1; v_head bigint := -1;
    v_waited bigint := least(v_now - coalesce(p_requested, v_now), 536870911); each record;
BEGIN
    WHILE v_receive < cardinality(p_counts) LOOP
        v_receive := v_receive + 1;
        v_left := least(p_counts[v_receive], v_places);
        v_given := '{}';
        WHILE v_left > 0 AND v_moved < 100 AND v_moved_bytes < 1048576 AND v_in_vain < 1000 LOOP
            SELECT group_id, eligible_at, head INTO v_group, v_at, v_head FROM mq.fifo_group
            WHERE qp = p_qp AND (eligible_at, head) >= (v_at, v_head) AND eligible_at <= v_now AND group_id <> ALL(v_done)
            ORDER BY eligible_at, head LIMIT 1 FOR UPDATE SKIP LOCKED;
            EXIT WHEN NOT FOUND;
            v_done := v_done || v_group;
            v_chosen := '{}';
            FOR each IN SELECT * FROM mq.fifo_msg
                WHERE qp = p_qp AND group_id = v_group AND seq >= v_floor AND sent_at > v_kept ORDER BY seq LIMIT v_left + 100 LOOP
                CONTINUE WHEN each.receive_count = 0 AND mq.due(each.visible_at, each.sent_at, 0, v_delay) > v_now;
                EXIT WHEN each.visible_at > v_now;
                IF p_dead IS NOT NULL AND each.receive_count >= p_receives_max THEN
                    PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'die', ARRAY[each.seq], NULL);
                    PERFORM mq.fifo_move(p_qp, each.seq, p_dead, p_source, p_counter + v_moved, NULL, NULL);
                    v_moved := v_moved + 1;
                    v_moved_bytes := v_moved_bytes + octet_length(each.body) + coalesce(octet_length(each.properties), 0);
                    EXIT WHEN v_moved = 100 OR v_moved_bytes >= 1048576;
                    CONTINUE;
                END IF;
                v_chosen := v_chosen || each.seq;
                EXIT WHEN cardinality(v_chosen) = v_left;
            END LOOP;
            IF p_log IS NOT NULL THEN
                PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'supersede', v_chosen, NULL);
            END IF;
            RETURN QUERY UPDATE mq.fifo_msg AS msg SET
                visible_at = least(v_now + p_timeout, p_last), receive_count = msg.receive_count + 1,
                first_received_at = coalesce(msg.first_received_at, v_now), received_at = coalesce(p_requested, v_now),
                generation = p_generation, epoch = msg.epoch + 1,
                log = CASE WHEN p_log IS NOT NULL THEN 1 | (v_waited << 34)
                    | (least(cardinality(v_given) + array_position(v_chosen, msg.seq) - 1, 255)::bigint << 10) END
            WHERE msg.qp = p_qp AND msg.seq = ANY(v_chosen)
            RETURNING msg.seq, msg.id, msg.body, msg.properties, msg.sent_at, msg.first_received_at, msg.receive_count,
                msg.receives_before, msg.visible_at, msg.generation, msg.epoch, msg.source, v_now, cardinality(v_done), v_receive;
            v_left := v_left - cardinality(v_chosen);
            v_places := v_places - cardinality(v_chosen);
            v_in_vain := v_in_vain + (v_chosen = '{}')::int;
            v_given := v_given || v_chosen;
            PERFORM mq.fifo_settle(p_qp, v_group, p_retention, v_chosen);
        END LOOP;
        EXIT WHEN v_given = '{}';
        IF p_log IS NOT NULL THEN
            UPDATE mq.fifo_msg AS msg SET log = msg.log | (least(cardinality(v_given), 255)::bigint << 2)
            WHERE msg.qp = p_qp AND msg.seq = ANY(v_given);
        END IF;
    END LOOP;
    IF v_moved > 0 THEN
        now := v_now;
        turn := v_moved;
        RETURN NEXT;
    END IF;
END $$;

-- Delete the messages of receipts, or, with p_timeouts, change their visibility. Return the previous state of each message. A change
-- that is not is_short would exceed the maximum lease and is not applied.
CREATE OR REPLACE FUNCTION mq.fifo_act(
    p_qp bigint, p_seqs bigint[], p_generations bigint[], p_epochs bigint[], p_any_epoch boolean[], p_timeouts bigint[],
    p_lease_max bigint[], p_renew boolean[], p_retention bigint, p_origin bigint, p_log text
) RETURNS TABLE (
    seq bigint, is_current boolean, visible_at bigint, now bigint, until bigint, is_short boolean, epoch bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms(); v_groups text[] := mq.fifo_lock(p_qp, p_seqs);
    v_how text := CASE WHEN p_timeouts IS NULL THEN 'delete' ELSE 'release' END;
BEGIN
    IF p_log IS NOT NULL THEN
        PERFORM mq.fifo_note(p_qp, p_origin, p_log, v_how, ARRAY(
            SELECT msg.seq FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch, p_timeouts)
                    AS asked (seq, generation, epoch, any_epoch, timeout)
                JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq
            WHERE msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch)
                AND msg.visible_at > v_now AND msg.sent_at > v_now - p_retention AND coalesce(asked.timeout, 0) = 0
        ), NULL);
    END IF;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT msg.seq, msg.visible_at, v_now + asked.timeout AS until, msg.epoch + asked.renew::int AS epoch,
            msg.generation = asked.generation AND (msg.epoch = asked.epoch OR asked.any_epoch) AS is_current,
            asked.timeout = 0 OR msg.receive_count = 0 AND asked.timeout <= asked.lease_max OR asked.lease_max IS NULL
                OR v_now + asked.timeout <= msg.received_at + asked.lease_max AS is_short
        FROM unnest(p_seqs, p_generations, p_epochs, p_any_epoch, p_timeouts, p_lease_max, p_renew)
                AS asked (seq, generation, epoch, any_epoch, timeout, lease_max, renew)
            JOIN mq.fifo_msg AS msg ON msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = asked.seq
                AND msg.sent_at > v_now - p_retention
    ), deleted AS (
        DELETE FROM mq.fifo_msg AS msg USING found
        WHERE v_how = 'delete' AND msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = found.seq
            AND found.is_current AND found.visible_at > v_now
    ), changed AS (
        UPDATE mq.fifo_msg AS msg SET
            visible_at = found.until - (msg.receive_count = 0 AND found.until = msg.sent_at)::int, epoch = found.epoch,
            log = CASE WHEN p_log IS NULL THEN msg.log ELSE mq.log_moved(msg.log, found.until <= v_now) END
        FROM found
        WHERE v_how = 'release' AND msg.qp = p_qp AND msg.seq = ANY(p_seqs) AND msg.seq = found.seq
            AND found.is_current AND found.visible_at > v_now AND found.is_short
    )
    SELECT found.seq, found.is_current, found.visible_at, v_now, found.until, found.is_short, found.epoch FROM found;
    PERFORM mq.fifo_settle(p_qp, each, p_retention) FROM unnest(v_groups) AS each;
END $$;

-- Bind up to p_count messages to a claim, all visible ones of each group with none in flight. A group is in one shard, of p_shards, or,
-- if that is 0, of as many as p_wanted messages need with p_shard_messages each. Moves at most p_letters_max dead letters.
CREATE OR REPLACE FUNCTION mq.fifo_bind(
    p_qp bigint, p_claim bigint, p_count integer, p_wanted integer, p_shards integer, p_shard_messages integer,
    p_generation bigint, p_retention bigint, p_receives_max integer, p_dead bigint, p_source text, p_counter bigint,
    p_letters_max integer, p_origin bigint, p_log text
) RETURNS TABLE(messages integer, shards integer, letters integer) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms(); v_delay bigint := coalesce((SELECT delay FROM mq.part WHERE qp = p_qp), 0);
    v_kept bigint := mq.fifo_expire(p_qp, p_retention, p_origin, p_log); v_floor bigint := (v_kept + 1) << 20;
    v_group text; v_seqs bigint[] := '{}'; v_chosen bigint[]; v_shards int := p_shards; v_letters int := 0; each record;
BEGIN
    FOR v_group IN SELECT group_id FROM mq.fifo_group WHERE qp = p_qp AND eligible_at <= v_now
        ORDER BY eligible_at, head LIMIT p_count FOR UPDATE SKIP LOCKED LOOP
        v_chosen := '{}';
        FOR each IN SELECT seq, visible_at, sent_at, receive_count FROM mq.fifo_msg
            WHERE qp = p_qp AND group_id = v_group AND seq >= v_floor AND sent_at > v_kept ORDER BY seq LOOP
            CONTINUE WHEN each.receive_count = 0 AND mq.due(each.visible_at, each.sent_at, 0, v_delay) > v_now;
            EXIT WHEN each.visible_at > v_now;
            IF p_dead IS NOT NULL AND each.receive_count >= p_receives_max THEN
                EXIT WHEN v_letters >= p_letters_max;
                PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'die', ARRAY[each.seq], NULL);
                PERFORM mq.fifo_move(p_qp, each.seq, p_dead, p_source, p_counter + v_letters, NULL, NULL);
                v_letters := v_letters + 1;
                CONTINUE;
            END IF;
            v_chosen := v_chosen || each.seq;
            EXIT WHEN cardinality(v_seqs) + cardinality(v_chosen) >= p_count;
        END LOOP;
        IF v_chosen = '{}' THEN
            PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
        ELSE
            UPDATE mq.fifo_group SET leased = v_chosen, eligible_at = 1::bigint << 61 WHERE qp = p_qp AND group_id = v_group;
        END IF;
        v_seqs := v_seqs || v_chosen;
        EXIT WHEN cardinality(v_seqs) >= p_count OR v_letters >= p_letters_max;
    END LOOP;
    IF v_shards = 0 THEN
        v_shards := greatest(1, ceil(
            (CASE WHEN cardinality(v_seqs) < p_count THEN cardinality(v_seqs) ELSE p_wanted END)::numeric / p_shard_messages
        )::int);
    END IF;
    PERFORM mq.fifo_note(p_qp, p_origin, p_log, 'supersede', v_seqs, NULL);
    UPDATE mq.fifo_msg AS msg SET
        visible_at = 1::bigint << 61, receive_count = msg.receive_count + 1, received_at = v_now,
        first_received_at = coalesce(msg.first_received_at, v_now), generation = p_generation, epoch = msg.epoch + 1, log = NULL,
        claim = p_claim, shard = (hashtextextended(msg.group_id, 0) & 1073741823) % v_shards
    WHERE msg.qp = p_qp AND msg.seq = ANY(v_seqs);
    RETURN QUERY SELECT cardinality(v_seqs), v_shards, v_letters;
END $$;

-- Return the time of retention: now, at most an hour after the last confirmed time, and not after it while a node doubts the clock.
CREATE OR REPLACE FUNCTION mq.retention_now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT least(
        mq.now_ms(), (SELECT confirmed_at + CASE WHEN doubted_by IS NULL THEN 3600000 ELSE 0 END FROM mq.clock)
    )
$$;

-- Return when a message is visible: a new message of a FIFO queue follows the delay of its queue.
CREATE OR REPLACE FUNCTION mq.due(
    p_visible_at bigint, p_sent_at bigint, p_receives integer, p_delay bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_visible_at + CASE WHEN p_receives = 0 AND p_visible_at = p_sent_at THEN p_delay ELSE 0 END
$$;

-- Trigger: copy the delay of a FIFO queue to its partition; unreadable settings change nothing.
CREATE OR REPLACE FUNCTION mq.fifo_delay() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_settings json; v_delay bigint; v_now bigint := mq.now_ms();
BEGIN
    v_settings := convert_from(NEW.settings, 'UTF8')::json;
    v_delay := coalesce((v_settings ->> 'delay_s')::bigint, 0) * 1000;
    UPDATE mq.part SET
        delay = v_delay,
        late_from = least(CASE WHEN late_until > v_now THEN late_from END, v_now + least(0, delay - v_delay)),
        late_until = greatest(late_until, v_now + delay)
    WHERE qp = NEW.qp AND delay <> v_delay AND (v_settings ->> 'fifo')::boolean;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER fair_earlier AFTER UPDATE ON mq.msg FOR EACH ROW
    WHEN (NEW.group_key IS NOT NULL AND NEW.visible_at < OLD.visible_at) EXECUTE FUNCTION mq.fair_touch();

CREATE OR REPLACE TRIGGER fair_sent AFTER INSERT ON mq.msg FOR EACH ROW
    WHEN (NEW.group_key IS NOT NULL) EXECUTE FUNCTION mq.fair_touch();

CREATE OR REPLACE TRIGGER queue_delayed AFTER INSERT OR UPDATE ON mq.queue FOR EACH ROW
    EXECUTE FUNCTION mq.fifo_delay();

-- Insert rows of a partition that no queue has, so that statistics never show an empty table or queues with one message each: then
-- the planner would use any index that begins with the partition, and statements would scan whole queues as they grow.
CREATE OR REPLACE FUNCTION mq.fill() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    filled record;
BEGIN
    FOR filled IN SELECT * FROM (VALUES
        ('msg', 'seq, visible_at, sent_at, priority, id, body', $row$at, at, at, 8, '', ''$row$),
        ('fair_turn', 'group_key, priority, at, sent_at', 'at, 108, at, at'),
        ('fifo_msg', 'seq, visible_at, sent_at, group_id, id, body', $row$at, at, at, at, '', ''$row$),
        ('fifo_group', 'group_id, eligible_at, head, last_seq', 'at, at, at, at'),
        ('accepted', 'key, expires_at, seq, id', $row$int4send(at), at, at, ''$row$),
        ('attempt', 'key, attempted_at, seqs, generations, epochs, issued, deadlines',
            $row$int4send(at), at, '{}', '{}', '{}', '{}', '{}'$row$)
    ) AS each (name, columns, content) LOOP
        EXECUTE format(
            'INSERT INTO mq.%I (qp, %s) SELECT 0, %s FROM generate_series(1, 1000) AS at ON CONFLICT DO NOTHING',
            filled.name, filled.columns, filled.content
        );
        EXECUTE format('ALTER TABLE mq.%I ALTER qp SET (n_distinct = 1)', filled.name);
        EXECUTE format('ANALYZE mq.%I', filled.name);
    END LOOP;
END $$;

SELECT mq.fill();
