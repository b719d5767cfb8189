"""Runs a module until its parent process ends: ``python -m veilmq.pipeline.demo.guarded MODULE ARGUMENT…``.

The parent holds the other end of its standard input. When that closes, also because the parent is killed, this process
sends itself SIGTERM, so no process of a demonstration outlives it.
"""

import os
import runpy
import signal
import sys
import threading


def _watch() -> None:
    while os.read(0, 1):  # not through a buffer: its lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the module that the first argument names, with the others as its own."""
    threading.Thread(target=_watch, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
