"""The jobs of the pipeline as DAGs of Apache Airflow 3: copy this file to Airflow's DAG folder.

Each task runs the command ``veilmq``, so the environment of Airflow needs neither veilmq nor Spark: the variable VEILMQ
is the path of the command in another environment with the extra ``spark``. A retried task continues a killed job.
"""

import os
from datetime import timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

VEILMQ = os.environ.get("VEILMQ", "veilmq")
LAKE = os.environ.get("VEILMQ_LAKE", "/var/lib/veilmq/lake")  # a folder shared by all Airflow workers
EVENTS = os.environ.get("VEILMQ_EVENTS", "/var/lib/veilmq/events")  # --events-to of the server

ORDERS, JOBS = "orders", "jobs"  # a queue to archive, and an intake queue to route
RETRIES = {"retries": 3, "retry_delay": timedelta(minutes=1)}


def job(name: str, words: str, **values: str) -> BashOperator:
    """Return the task that runs one job; the shell variables ``values`` may be templates."""
    command = f"{VEILMQ} pipeline {name} {words}"
    return BashOperator(task_id=name, bash_command=command, env=values, append_env=True)


with DAG("veilmq_hourly", schedule="@hourly", catchup=False, max_active_runs=1, default_args=RETRIES):
    archive = job("archive", f"{ORDERS} --table {LAKE}/archive")
    tune = job("tune", f"--events {EVENTS}/receipt_closed --state {LAKE}/state")
    report = job("report", f"--state {LAKE}/state --to {LAKE}/report.html")
    table = job("route-table", f"{JOBS} --state {LAKE}/state --to {LAKE}/routes.json")
    route = job("route", f"{JOBS} --table {LAKE}/routes.json --checkpoint {LAKE}/checkpoints/{JOBS} --create")
    tune >> [report, table]
    table >> route

REPLAY = {"queue": ORDERS, "to": f"{ORDERS}-again", "since": "2020-01-01", "until": "2100-01-01"}

with DAG("veilmq_replay", schedule=None, params=REPLAY, default_args=RETRIES):
    job(
        "replay",
        f'"$TO" --table {LAKE}/archive --run "$RUN" --queue "$QUEUE" --since "$SINCE" --until "$UNTIL"',
        RUN="{{ dag_run.run_after | ts_nodash }}",  # the same at each retry, so each message is sent once
        **{name.upper(): f"{{{{ params.{name} }}}}" for name in REPLAY},
    )
