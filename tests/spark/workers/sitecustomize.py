"""What each Python process of Spark runs first: it takes pyspark from where it is installed.

Spark puts `pyspark.zip` first into the path of its Python processes. That file has no compiled modules, so each process
compiles for a second all that it imports; a streaming query starts several.
"""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith(("pyspark.zip", "-src.zip"))]
