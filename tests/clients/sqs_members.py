"""Members of requests that tests of errors have in common, here and with clients."""

from typing import Any

LISTED = {"a": {"DataType": "String", "StringListValues": ["a"]}}
"""Message attributes of a kind that is not offered."""

MEMBERS: dict[str, dict[str, Any]] = {
    "DeleteQueue": {},
    "PurgeQueue": {},
    "GetQueueAttributes": {},
    "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
    "ListQueueTags": {},
    "ListDeadLetterSourceQueues": {},
    "AddPermission": {"Label": "a", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
    "RemovePermission": {"Label": "a"},
    "SendMessage": {"MessageBody": "x"},
    "SendMessageBatch": {"Entries": [{"Id": "a", "MessageBody": "x"}]},
    "ReceiveMessage": {},
    "DeleteMessage": {"ReceiptHandle": "r"},
    "DeleteMessageBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "r"}]},
    "ChangeMessageVisibility": {"ReceiptHandle": "r", "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "r", "VisibilityTimeout": 1}]},
}
"""Actions on one queue → the least that they need beside it."""
