"""The few lines by which Spark finds ``format("veilmq")`` on its own: it imports modules named ``pyspark_*``."""
