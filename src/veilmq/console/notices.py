"""What a page says after a change: sentences by key, so that no address can put words of others into a page."""

NOTICES = {
    "claim-released": "The claim was released; its messages are delivered again.",
    "created": "The queue was created.",
    "deleted": "The queue and its messages were deleted.",
    "evicted": "The message was moved out of the claim, to the dead-letter queue.",
    "move-cancelled": "The move was cancelled; what is moved stays moved.",
    "move-started": "The move has begun.",
    "nothing-received": "Nothing was received: no message is visible that a receive could give.",
    "purged": "All messages of the queue were deleted.",
    "saved": "The settings were changed.",
    "sent": "The message is stored.",
    "signed-out": "You have signed out.",
    "source-closed": "The source was closed; its messages are delivered again.",
    "timeout-applied": "The recommended timeout was set; messages in flight keep their deadlines.",
    "unchanged": "Nothing was changed: the settings are as they were.",
}
