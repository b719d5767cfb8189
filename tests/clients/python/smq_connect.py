import os

from mns.account import Account

smq = Account(os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324"), "any", "any")
