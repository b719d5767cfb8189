"""What can go wrong with topics and subscriptions, beside what can with every command (``core.errors``)."""

from veilmq.core.errors import VeilmqError


class TopicNotFound(VeilmqError):
    """The named topic does not exist."""

    def __init__(self, topic: str) -> None:
        """``topic`` is the full name, account included."""
        super().__init__(f"The topic {topic} does not exist; create it first.")
        self.topic = topic


class TopicExists(VeilmqError):
    """A topic of that name exists with another value of ``setting`` (a field of ``TopicSettings``)."""

    def __init__(self, topic: str, setting: str) -> None:
        """``setting`` is the first field whose supplied value differs."""
        super().__init__(f"The topic {topic} exists with another {setting}; leave it out, or change the topic first.")
        self.topic = topic
        self.setting = setting


class SubscriptionNotFound(VeilmqError):
    """The topic has no such subscription."""

    def __init__(self, topic: str, subscription: str) -> None:
        """``topic`` is the full name, ``subscription`` its own."""
        super().__init__(f"The topic {topic} has no subscription {subscription}; subscribe first.")
        self.topic = topic
        self.subscription = subscription


class SubscriptionExists(VeilmqError):
    """A subscription of that name exists with another value of ``setting`` (a field of ``Subscription``)."""

    def __init__(self, topic: str, subscription: str, setting: str) -> None:
        """``setting`` is the first field that differs."""
        super().__init__(
            f"The subscription {subscription} of {topic} exists with another {setting}; end it first, or name another."
        )
        self.topic = topic
        self.subscription = subscription
        self.setting = setting


class TooManySubscriptions(VeilmqError):
    """The topic would have more subscriptions than it may."""

    def __init__(self, subscriptions_max: int) -> None:
        """``subscriptions_max`` is the limit in force."""
        super().__init__(f"A topic may have {subscriptions_max} subscriptions; end some first.")
        self.subscriptions_max = subscriptions_max


class EndpointRefused(VeilmqError):
    """Messages cannot, or may not, be pushed to ``endpoint``."""

    def __init__(self, endpoint: str, why: str) -> None:
        """``why`` says what is wrong, and what to do, as words behind a colon."""
        super().__init__(f"Nothing can be pushed to {endpoint[:200]!r}: {why}.")
        self.endpoint = endpoint
        self.why = why
