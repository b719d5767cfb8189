"""What spark-submit is given to run a job: ``spark-submit examples/pipeline_job.py archive orders --table …``."""

import sys

from veilmq.cli import main

sys.exit(main(["pipeline", *sys.argv[1:]]))
