"""What a page says after a change: sentences by key, so that no address can put words of others into a page."""

NOTICES = {
    "claim-released": "The claim was released; its messages are delivered again.",
    "created": "The queue was created.",
    "deleted": "The queue and its messages were deleted.",
    "evicted": "The message was moved out of the claim, to the dead-letter queue.",
    "purged": "All messages of the queue were deleted.",
    "saved": "The settings were changed.",
    "signed-out": "You have signed out.",
    "source-closed": "The source was closed; its messages are delivered again.",
    "unchanged": "Nothing was changed: the settings are as they were.",
}
