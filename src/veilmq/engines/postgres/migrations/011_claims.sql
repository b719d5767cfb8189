-- Claims: the readers of queues, and the numbered sets of messages that are theirs.
--
-- A claimed message stays where it is, at the instant 1 << 61, which no clock reaches: behind all that a receive looks at.
-- Locks are taken in one order: sources by name, then the partition, then claims, then groups, then messages.

-- Readers, by the first partition of their queue: they outlive a purge.
CREATE TABLE mq.source (
    qp bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    consumer text COLLATE "C" NOT NULL DEFAULT '',
    epoch bigint NOT NULL DEFAULT 0,
    acknowledged bigint NOT NULL DEFAULT 0,
    last bigint NOT NULL DEFAULT 0,
    -- The numbers that the last acknowledgement passed over.
    lost bigint[] NOT NULL DEFAULT '{}',
    hold bigint NOT NULL DEFAULT 0,
    lease bigint NOT NULL DEFAULT 0,
    beat_at bigint NOT NULL,
    -- When somebody must look whether its hold, or its time, has ended; it may be too early.
    look_at bigint NOT NULL,
    PRIMARY KEY (qp, name)
) WITH (fillfactor = 70);
CREATE INDEX source_look ON mq.source (look_at);

-- qp is as of their sources, part the partition of their messages. One without a source is forgotten when it has ended.
CREATE TABLE mq.claim (
    claim_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    qp bigint NOT NULL,
    part bigint NOT NULL,
    source text COLLATE "C",
    number bigint NOT NULL,
    state text NOT NULL,
    messages int NOT NULL DEFAULT 0,
    shards int NOT NULL DEFAULT 0,
    -- How many messages the last shard has, in a standard queue.
    filled int NOT NULL DEFAULT 0,
    bound_at bigint NOT NULL,
    -- Whether messages are still to be deleted, or to be given back.
    is_ending boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX claim_number ON mq.claim (qp, source, number) WHERE source IS NOT NULL;
CREATE INDEX claim_ending ON mq.claim (claim_id) WHERE is_ending;
CREATE INDEX claim_acknowledged ON mq.claim (part) WHERE state = 'acknowledged';

ALTER TABLE mq.source SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

ALTER TABLE mq.msg ADD COLUMN claim bigint, ADD COLUMN shard int;
CREATE INDEX msg_claim ON mq.msg (qp, claim, shard, seq) WHERE claim IS NOT NULL;

ALTER TABLE mq.fifo_msg ADD COLUMN claim bigint, ADD COLUMN shard int;
CREATE INDEX fifo_msg_claim ON mq.fifo_msg (qp, claim, shard, seq) WHERE claim IS NOT NULL;

-- Says anew when a group gives its next message, whose row the caller has locked: when the last of its messages in flight is
-- visible again or ends (a claimed one does neither), or, with none in flight, when the first of the others was or will be
-- visible. Removes an empty one.
CREATE OR REPLACE FUNCTION mq.fifo_settle(p_qp bigint, p_group text, p_retention bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_leased bigint[];
    v_until bigint;
    v_first bigint;
    v_head bigint;
    each record;
BEGIN
    SELECT array_agg(msg.seq ORDER BY msg.seq),
        max(CASE WHEN msg.claim IS NULL THEN least(msg.visible_at, msg.sent_at + p_retention) ELSE msg.visible_at END)
    INTO v_leased, v_until
    FROM mq.fifo_group AS of_group CROSS JOIN unnest(of_group.leased) AS lease (seq) CROSS JOIN LATERAL (
        SELECT * FROM mq.fifo_msg WHERE qp = p_qp AND fifo_msg.seq = lease.seq OFFSET 0 -- one by one
    ) AS msg
    WHERE of_group.qp = p_qp AND of_group.group_id = p_group AND msg.visible_at > v_now AND msg.receive_count > 0
        AND (msg.sent_at > v_now - p_retention OR msg.claim IS NOT NULL);
    FOR each IN SELECT seq, visible_at FROM mq.fifo_msg
        WHERE qp = p_qp AND group_id = p_group AND sent_at > v_now - p_retention AND claim IS NULL ORDER BY seq
    LOOP
        CONTINUE WHEN each.seq = ANY(v_leased);
        IF v_first IS NULL OR each.visible_at < v_first THEN
            v_first := each.visible_at;
            v_head := each.seq;
        END IF;
        EXIT WHEN each.visible_at <= v_now;
    END LOOP;
    IF v_leased IS NULL AND coalesce(v_first, v_now + 1) > v_now THEN
        -- Nothing to give now: unless somebody is sending to the group, whose message is not seen yet.
        IF NOT pg_try_advisory_xact_lock(hashtextextended(p_group, p_qp)) THEN
            v_first := v_now;
        ELSIF v_first IS NULL THEN
            DELETE FROM mq.fifo_group WHERE qp = p_qp AND group_id = p_group
                AND NOT EXISTS (SELECT FROM mq.fifo_msg WHERE qp = p_qp AND group_id = p_group);
            IF FOUND THEN
                RETURN;
            END IF;
            v_first := v_now;
        END IF;
    END IF;
    UPDATE mq.fifo_group SET
        leased = coalesce(v_leased, '{}'),
        eligible_at = coalesce(v_until, v_first),
        head = coalesce(v_head, head)
    WHERE qp = p_qp AND group_id = p_group;
END $$;

-- Binds up to p_count messages to a claim, of groups that have none in flight, of each as many as it can give. All of a group
-- are in one shard, of p_shards, or, where that is 0, of as many as p_wanted messages need, p_shard_messages each. No more
-- than p_letters_max dead letters leave.
CREATE FUNCTION mq.fifo_bind(
    p_qp bigint, p_claim bigint, p_count int, p_wanted int, p_shards int, p_shard_messages int, p_generation bigint,
    p_retention bigint, p_receives_max int, p_dead bigint, p_source text, p_counter bigint, p_letters_max int
) RETURNS TABLE (messages int, shards int, letters int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := mq.now_ms();
    v_group text;
    v_seqs bigint[] := '{}';
    v_chosen bigint[];
    v_shards int := p_shards;
    v_letters int := 0;
    each record;
BEGIN
    FOR v_group IN SELECT group_id FROM mq.fifo_group WHERE qp = p_qp AND eligible_at <= v_now
        ORDER BY eligible_at, head LIMIT p_count FOR UPDATE SKIP LOCKED
    LOOP
        v_chosen := '{}';
        DELETE FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group AND sent_at <= v_now - p_retention AND claim IS NULL
            AND seq < ((v_now - p_retention + 1) << 20);
        FOR each IN SELECT seq, visible_at, receive_count FROM mq.fifo_msg WHERE qp = p_qp AND group_id = v_group ORDER BY seq
        LOOP
            CONTINUE WHEN each.visible_at > v_now AND each.receive_count = 0;
            EXIT WHEN each.visible_at > v_now;
            IF p_dead IS NOT NULL AND each.receive_count >= p_receives_max THEN
                EXIT WHEN v_letters >= p_letters_max;
                PERFORM mq.fifo_move(p_qp, each.seq, p_dead, p_source, p_counter + v_letters);
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
    UPDATE mq.fifo_msg AS msg SET
        visible_at = 1::bigint << 61,
        receive_count = msg.receive_count + 1,
        first_received_at = coalesce(msg.first_received_at, v_now),
        received_at = v_now,
        generation = p_generation,
        epoch = msg.epoch + 1,
        claim = p_claim,
        shard = (hashtextextended(msg.group_id, 0) & 1073741823) % v_shards
    WHERE msg.qp = p_qp AND msg.seq = ANY(v_seqs);
    RETURN QUERY SELECT cardinality(v_seqs), v_shards, v_letters;
END $$;

-- Locks the groups of the next p_count messages of a claim; tells the positions of these.
CREATE FUNCTION mq.fifo_claimed(p_qp bigint, p_claim bigint, p_count int) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_seqs bigint[] := ARRAY(
        SELECT seq FROM mq.fifo_msg WHERE qp = p_qp AND claim = p_claim ORDER BY shard, seq LIMIT p_count
    );
BEGIN
    PERFORM mq.fifo_lock(p_qp, v_seqs);
    RETURN v_seqs;
END $$;

-- Deletes the next p_count messages of a claim; tells how many.
CREATE FUNCTION mq.fifo_end_claim(p_qp bigint, p_claim bigint, p_count int, p_retention bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_seqs bigint[] := mq.fifo_claimed(p_qp, p_claim, p_count);
BEGIN
    PERFORM mq.fifo_remove(p_qp, v_seqs, p_retention);
    RETURN cardinality(v_seqs);
END $$;

-- Gives the next p_count messages of a claim back, those within their retention; tells how many there were.
CREATE FUNCTION mq.fifo_give_back(p_qp bigint, p_claim bigint, p_count int, p_retention bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_seqs bigint[] := mq.fifo_claimed(p_qp, p_claim, p_count);
    v_group text;
BEGIN
    UPDATE mq.fifo_msg SET visible_at = v_now, claim = NULL, shard = NULL WHERE qp = p_qp AND seq = ANY(v_seqs);
    FOR v_group IN SELECT DISTINCT group_id FROM mq.fifo_msg WHERE qp = p_qp AND seq = ANY(v_seqs) LOOP
        DELETE FROM mq.fifo_msg
        WHERE qp = p_qp AND group_id = v_group AND seq = ANY(v_seqs) AND sent_at <= v_now - p_retention;
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
    RETURN cardinality(v_seqs);
END $$;

-- Sends a claimed message to another partition as a dead letter, and frees its group.
CREATE FUNCTION mq.fifo_evict(
    p_qp bigint, p_target bigint, p_seq bigint, p_source text, p_counter bigint, p_retention bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_groups text[] := mq.fifo_lock(p_qp, ARRAY[p_seq]);
    v_group text;
BEGIN
    PERFORM mq.fifo_move(p_qp, p_seq, p_target, p_source, p_counter);
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
END $$;

-- Deletes up to p_count messages past their retention, but for claimed ones, and says anew when their groups give the next one;
-- tells how many.
CREATE OR REPLACE FUNCTION mq.fifo_sweep(p_qp bigint, p_retention bigint, p_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := mq.now_ms();
    v_seqs bigint[];
    v_groups text[];
    v_group text;
BEGIN
    SELECT array_agg(ended.seq) INTO v_seqs FROM (
        SELECT seq FROM mq.fifo_msg
        WHERE qp = p_qp AND seq < ((v_now - p_retention + 1) << 20) AND sent_at <= v_now - p_retention AND claim IS NULL
        ORDER BY seq LIMIT p_count
    ) AS ended;
    v_groups := mq.fifo_lock(p_qp, v_seqs);
    DELETE FROM mq.fifo_msg WHERE qp = p_qp AND seq = ANY(v_seqs) AND claim IS NULL;
    FOREACH v_group IN ARRAY v_groups LOOP
        PERFORM mq.fifo_settle(p_qp, v_group, p_retention);
    END LOOP;
    RETURN coalesce(cardinality(v_seqs), 0);
END $$;
