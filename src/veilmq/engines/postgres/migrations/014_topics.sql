-- Topics and their subscriptions: control plane. What is published goes to the queues of the subscriptions and is not kept here.

CREATE TABLE mq.topic (
    topic_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    settings bytea NOT NULL,
    created_at bigint NOT NULL,
    modified_at bigint NOT NULL
);

CREATE TABLE mq.subscription (
    topic_id bigint NOT NULL REFERENCES mq.topic ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    content bytea NOT NULL,
    pushed boolean NOT NULL,
    created_at bigint NOT NULL,
    modified_at bigint NOT NULL,
    PRIMARY KEY (topic_id, name)
);
CREATE INDEX subscription_pushed ON mq.subscription (topic_id, name) WHERE pushed;
