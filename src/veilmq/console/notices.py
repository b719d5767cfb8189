"""What a page says after a change: sentences by key, so that no address can put words of others into a page."""

NOTICES = {
    "created": "The queue was created.",
    "deleted": "The queue and its messages were deleted.",
    "purged": "All messages of the queue were deleted.",
    "saved": "The settings were changed.",
    "signed-out": "You have signed out.",
    "unchanged": "Nothing was changed: the settings are as they were.",
}
