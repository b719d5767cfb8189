"""Run first in each Python process of Spark: prefer the installed pyspark.

Spark puts `pyspark.zip`, which has no compiled modules, first into the path of its Python processes. So each process
would compile its imports for a second; a streaming query starts several.
"""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith(("pyspark.zip", "-src.zip"))]
