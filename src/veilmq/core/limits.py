"""All limits. The table in ``docs/limits.md`` is generated from this file.

An engine accepts the widest value of any protocol; the wire checks the narrower limits of each.
"""

from dataclasses import dataclass

from msgspec import Meta

SECOND_MS = 1_000


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from ``minimum`` to ``maximum`` (inclusive), with the default."""

    minimum: int
    maximum: int
    default: int

    def holds(self, value: int) -> bool:
        """Return whether ``value`` is in the range."""
        return self.minimum <= value <= self.maximum

    def read(self, text: str) -> int:
        """Parse ``text`` as a decimal number in the range; raises ``ValueError``."""
        if not text.isascii() or not text.removeprefix("-").isdecimal() or not self.holds(number := int(text)):
            raise ValueError(text)
        return number

    def __str__(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}"

    @property
    def constraint(self) -> Meta:
        """The range as a constraint of a msgspec field."""
        return Meta(ge=self.minimum, le=self.maximum)


# The widest values of all protocols.
VISIBILITY_TIMEOUT_S = Range(minimum=0, maximum=43_200, default=30)  # from a receive until the message is visible
DELAY_S = Range(minimum=0, maximum=604_800, default=0)  # from a send until the message is visible
RETENTION_S = Range(minimum=60, maximum=1_209_600, default=345_600)  # from a send until the message is deleted
RECEIVE_WAIT_S = Range(minimum=0, maximum=30, default=0)  # of a receive that finds no message
MESSAGE_BYTES = Range(minimum=1_024, maximum=1_048_576, default=1_048_576)  # body and attributes together
PRIORITY = Range(minimum=1, maximum=16, default=8)  # of a message sent over SMQ; 1 is received first
LEASE_S_MAX = 43_200  # from a receive, however often the timeout is changed
VISIBILITY_RULES_BYTES_MAX = 65_536
RECEIVES_PER_S = Range(minimum=0, maximum=1_000_000, default=0)  # per queue; 0 for no limit
IN_FLIGHT = Range(minimum=1, maximum=1_000_000, default=120_000)  # messages in flight of a standard queue
FIFO_IN_FLIGHT = Range(minimum=1, maximum=1_000_000, default=20_000)  # messages in flight of a FIFO queue
DEDUPLICATION_S = 300  # for which a FIFO queue recognises a duplicate
ATTEMPT_S = 300  # for which a receive from a FIFO queue can be repeated by its attempt id
FAIR_SHARE_PERCENT = 10  # a group with a larger share of a fair queue is noisy
FAIR_IN_FLIGHT_MIN = 30  # messages in flight that a group needs to be noisy by them
FAIR_SILENCE_S = 300  # without a send, after which a group is quiet
FAIR_RECENT_S = 60  # half-life of recent processing time
CLAIM_HOLD_S = Range(minimum=60, maximum=1_209_600, default=3_600)  # from a heartbeat until messages return
CLAIM_LEASE_S = Range(minimum=5, maximum=3_600, default=60)  # for which a heartbeat keeps a source alive
CLAIMED = Range(minimum=1, maximum=1_000_000_000, default=10_000_000)  # claimed messages per queue
CLAIM_MESSAGES = Range(minimum=1, maximum=1_000_000, default=100_000)  # per claim
CLAIM_SHARD_MESSAGES = 25_000  # the default size of a shard
STORED_BYTES_MAX = 1_114_112  # the longest stored message, with names and groups
CLAIM_BYTES = Range(minimum=2_097_152, maximum=1 << 40, default=1 << 40)  # per claim
CLAIM_PAGE_MESSAGES = 2_000  # per page of a shard
CLAIM_SHARDS_MAX = 1_024  # per claim
CLAIM_PAGE_BYTES = 4 * 1_048_576  # per page of a shard
CLAIM_SLICE_ROWS = 2_000  # rows of claims that one command deletes; fewer if it returns or takes them one by one
SOURCE_SILENCE_S = 1_209_600  # after which a source without open claims is deleted
SOURCES_LISTED_MAX = 1_000  # per queue
CLAIM_READ_BYTES = 4 * 1_048_576  # a reply with messages of a claim ends with the page that reaches it
INSPECT_MESSAGES = Range(minimum=1, maximum=100, default=10)  # per reply
INSPECT_LEASES = Range(minimum=1, maximum=1_000, default=100)  # per reply
INSPECT_ALSO_MAX = 200  # leases selected by position
INSPECT_BYTES = 4 * 1_048_576  # a reply ends with the message that reaches it
INSPECT_READ_BYTES = 8 * 1_048_576  # bytes read for a reply with truncated bodies
INSPECTED_MAX = 1_000  # messages or leases per command
INSPECT_SCANNED_MAX = 100_000  # messages of other states that a command skips: 10 to 100 ms
BROWSED_QUEUES_MAX = 200  # per page
STAGE_MESSAGES_MAX = 5_000  # per call
STAGE_BYTES_MAX = 4 * 1_048_576  # all messages of one call
PUBLISH_PER_S = Range(minimum=1, maximum=1_000_000, default=1_000_000)  # messages per second of one publication
PUBLISH_ATTEMPTS_MAX = 1_000  # per call
WRITER_SILENCE_S = 1_209_600  # after which a writer and its staged messages are deleted
WRITERS_LISTED_MAX = 1_000  # per queue
PURGE_PAUSE_S = 60  # between two purges of a queue
QUEUE_NAME_PAUSE_S = 60  # until the name of a deleted queue can be used again

# Amazon SQS (SQS Developer Guide, "Amazon SQS quotas"; API Reference 2012-11-05).
SQS_DELAY_S = Range(minimum=0, maximum=900, default=0)
SQS_RECEIVE_WAIT_S = Range(minimum=0, maximum=20, default=0)
SQS_RECEIVE_COUNT = Range(minimum=1, maximum=10, default=1)  # messages per receive
SQS_LIST_RESULTS = Range(minimum=1, maximum=1_000, default=1_000)  # queues per page
SQS_RECEIVES_MAX = Range(minimum=1, maximum=1_000, default=10)  # until a message is a dead letter
SQS_KMS_DATA_KEY_REUSE_S = Range(minimum=60, maximum=86_400, default=300)
SQS_KMS_KEY_CHARACTERS_MAX = 2_048
SQS_MOVES_PER_S = Range(minimum=1, maximum=500, default=500)  # of a move task with a rate; without one it has no limit
SQS_MOVE_TASK_RESULTS = Range(minimum=1, maximum=10, default=1)  # tasks per reply
SQS_BATCH_ENTRIES_MAX = 10
SQS_BATCH_BYTES_MAX = 1_048_576
SQS_BATCH_ENTRY_ID_CHARACTERS_MAX = 80
SQS_QUEUE_NAME_CHARACTERS_MAX = 80
SQS_MESSAGE_ATTRIBUTES_MAX = 10
SQS_ATTRIBUTE_NAME_CHARACTERS_MAX = 256
SQS_ATTRIBUTE_TYPE_CHARACTERS_MAX = 256
SQS_GROUP_ID_CHARACTERS_MAX = 128
SQS_DEDUPLICATION_ID_CHARACTERS_MAX = 128
SQS_ATTEMPT_ID_CHARACTERS_MAX = 128
SQS_TAGS_MAX = 50
SQS_TAG_KEY_CHARACTERS_MAX = 128
SQS_TAG_VALUE_CHARACTERS_MAX = 256
SQS_REDRIVE_SOURCES_MAX = 10
SQS_POLICY_BYTES_MAX = 8_192
SQS_POLICY_STATEMENTS_MAX = 20
SQS_POLICY_PRINCIPALS_MAX = 50
SQS_POLICY_CONDITIONS_MAX = 10
SQS_POLICY_ACTIONS_MAX = 7  # per statement
SQS_POLICY_LABEL_CHARACTERS_MAX = 80
SQS_PRESIGNED_S = Range(minimum=1, maximum=604_800, default=900)  # for which a presigned URL is valid
SIGNATURE_SKEW_S = 900  # between the date of a signature and the server's clock, either way
JSON_LARGE_BODY_BYTES = 65_536  # the values of a larger body are counted before it is decoded
JSON_PUNCTUATION_MAX = 4_096  # brackets, braces and commas of a list or map in a large body; valid ones have some 1,500
QUERY_PARAMETERS_MAX = 1_024  # per request in the Query protocol; the widest valid batch has about 500
QUERY_DEPTH_MAX = 8  # parts of a parameter name; valid names have at most seven

# Alibaba Cloud SMQ (API version 2015-06-06).
SMQ_VISIBILITY_TIMEOUT_S = Range(minimum=1, maximum=43_200, default=30)
SMQ_DELAY_S = Range(minimum=0, maximum=604_800, default=0)
SMQ_RETENTION_S = Range(minimum=60, maximum=604_800, default=345_600)
SMQ_RECEIVE_WAIT_S = Range(minimum=0, maximum=30, default=0)
SMQ_MESSAGE_BYTES = Range(minimum=1_024, maximum=65_536, default=65_536)
SMQ_RECEIVE_COUNT = Range(minimum=1, maximum=16, default=1)  # messages per receive
SMQ_BATCH_ENTRIES_MAX = 16
SMQ_BATCH_BYTES_MAX = 65_536
SMQ_LIST_RESULTS = Range(minimum=1, maximum=1_000, default=1_000)  # queues or topics per page
SMQ_QUEUE_NAME_CHARACTERS_MAX = 256
SMQ_GROUP_ID_CHARACTERS_MAX = 128
SMQ_LOGGING_BUCKET_CHARACTERS_MAX = 256
SMQ_PROPERTIES_MAX = 50
SMQ_PROPERTY_NAME_CHARACTERS_MAX = 256
SMQ_PROPERTY_VALUE_CHARACTERS_MAX = 4_096
SMQ_TOPIC_NAME_CHARACTERS_MAX = 255
SMQ_SUBSCRIPTION_NAME_CHARACTERS_MAX = 255
SMQ_SUBSCRIPTIONS_MAX = 100  # per topic
SMQ_TAG_CHARACTERS_MAX = 16  # MessageTag and FilterTag
SMQ_TOPIC_RETENTION_S = 86_400  # for which a message waits to be pushed
SMQ_XML_DEPTH_MAX = 8  # nested elements; valid requests have at most five
SMQ_XML_ELEMENTS_MAX = 8_192  # per request; the widest valid batch has about 6,600
SMQ_XML_TAG_CHARACTERS_MAX = 1_024  # the name of an element; its attributes together

# The HTTP server.
HTTP_BODY_BYTES_MAX = 8 * 1_048_576  # JSON with every character escaped is six times as long as its message
HTTP_LARGE_BODY_BYTES = 65_536  # a longer body reserves its bytes in the budget before it is read
HTTP_BODY_STEP_BYTES = 1_048_576  # the part that a chunked body reserves at a time
HTTP_BODY_WAIT_S_MAX = 5  # waiting for room in the budget, then 503
HTTP_BYTES = Range(minimum=67_108_864, maximum=2**40, default=134_217_728)  # bodies and unread replies together
HTTP_HEAD_BYTES_MAX = 32_768  # request line and headers
HTTP_HEADERS_MAX = 100  # per request; as many trailers
HTTP_TARGET_BYTES_MAX = 8_192  # path and query of a request
HTTP_REQUEST_S_MAX = 30  # until a request is complete
HTTP_IDLE_S_MAX = 75  # of a connection without requests
HTTP_PIPELINED_REQUESTS_MAX = 64  # in progress on a connection

# The store.
BATCH_COMMANDS_MAX = 1_024  # in one transaction of a data folder
BATCH_BYTES_MAX = 2 * 1_048_576  # of messages in one transaction of a data folder
BATCH_ROW_BYTES = 384  # counted for each row beside its content, which limits a batch to about 5,000 rows
EVENTS_WAITING_MAX = 10_000_000  # about 1 GB
DEAD_LETTERS_PER_RECEIVE = 100  # moved by one receive
DEAD_LETTER_BYTES_PER_RECEIVE = 1_048_576  # moved by one receive
MOVE_TASKS_KEPT = 10  # of a dead-letter queue, the latest
MOVE_SLICE_MESSAGES = 200  # moved in one slice of a move task: about 10 ms
MOVE_SLICE_BYTES = 1_048_576
FREE_SPACE_RESERVE_BYTES = 64 * 1_048_576  # of free disk space, below which sends are refused

# The pipeline.
ARCHIVE_COMPACT_MINUTES = Range(minimum=0, maximum=1_440, default=10)  # from one compaction to the next; 0 for never
ARCHIVE_EXPIRE_DAYS = Range(minimum=0, maximum=36_500, default=0)  # after the day of sending; 0 for never
ARCHIVE_KEEP_H = Range(minimum=1, maximum=8_760, default=168)  # until unreferenced files are deleted
REPLAY_BATCH_MESSAGES = Range(minimum=1, maximum=1_000_000, default=50_000)  # sent in one transaction
TUNE_MAP_TASKS = Range(minimum=1, maximum=10_000, default=64)  # whatever the length of the event log
