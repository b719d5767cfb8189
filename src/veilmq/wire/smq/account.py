"""The account's own attributes, and the stub of opening the service (reference, section 4.14)."""

from typing import Any

from veilmq.core.account_settings import AccountSettings, SetAccount, ShowAccount
from veilmq.core.limits import SMQ_LOGGING_BUCKET_CHARACTERS_MAX
from veilmq.wire.smq.errors import invalid_argument
from veilmq.wire.smq.members import body_of, texts
from veilmq.wire.smq.plan import Answer, Plan, answered, nothing
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.xml_writing import document, element
from veilmq.wire.sqs.context import RequestContext

_BUCKET = "LoggingBucket"


def get_account_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetAccountAttributes: the bucket, which is there also when it is empty."""

    def respond(result: Any) -> Answer:
        settings: AccountSettings = answered(result)
        return Answer(200, document("Account", element(_BUCKET, settings.logging_bucket)))

    return Plan(ShowAccount(account=context.account), respond)


def set_account_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetAccountAttributes: the bucket; a body that does not name one changes nothing."""
    bucket = texts(body_of(request, "Account")).get(_BUCKET)
    if bucket is None:
        return Plan(ShowAccount(account=context.account), nothing)
    bucket = bucket.strip()
    if len(bucket) > SMQ_LOGGING_BUCKET_CHARACTERS_MAX:
        raise invalid_argument(f"{_BUCKET}, which has up to {SMQ_LOGGING_BUCKET_CHARACTERS_MAX} characters")
    return Plan(SetAccount(account=context.account, settings=AccountSettings(logging_bucket=bucket)), nothing)


def open_service(request: SmqRequest, context: RequestContext) -> Plan:
    """OpenService: there is nothing to open and no order; an account that may ask is served."""

    def respond(result: Any) -> Answer:
        answered(result)
        return Answer(200, document("OpenService", element("OrderId", "0")))

    return Plan(ShowAccount(account=context.account), respond)
