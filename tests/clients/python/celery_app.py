import os

from celery import Celery

endpoint = os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324")

app = Celery("orders", broker=endpoint.replace("http://", "sqs://any:any@"))
app.conf.broker_transport_options = {
    "region": "us-east-1",
    "is_secure": False,  # http
    "visibility_timeout": 3600,  # of the queues that Celery makes; longer than any countdown
}
