#!/bin/sh
# Prints the Python for the environment: $PYTHON if set, else the newest that works. "Works" means: it runs (a version
# manager's shim may run nothing), is 3.11 or newer, and can make a virtual environment with pip. If none works, prints what
# to install.
set -eu

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
can_make_venv='import ensurepip, venv'

runs() { "$1" -c "$2" >/dev/null 2>&1; }

without_venv=
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    runs "$candidate" "$new_enough" || continue
    if runs "$candidate" "$can_make_venv"; then
        echo "$candidate"
        exit 0
    fi
    without_venv=${without_venv:-$candidate}
done

if [ -n "$without_venv" ]; then
    minor=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    {
        echo "veilmq: $without_venv (Python $minor) cannot make a virtual environment: venv or ensurepip is missing."
        echo "  Debian, Ubuntu:  apt-get install python$minor-venv"
        echo "  Alpine:          apk add py3-pip"
        echo "  elsewhere:       install the complete Python from python.org, or set PYTHON=/path/to/python"
    } >&2
elif [ -n "${PYTHON:-}" ]; then
    echo "veilmq: PYTHON=$PYTHON does not run or is older than 3.11; set it to a Python 3.11 or newer." >&2
else
    {
        echo "veilmq: needs Python 3.11 or newer; found none of python3.13, python3.12, python3.11, python3 that works."
        echo "  Debian 12+, Ubuntu 24.04+:  apt-get install python3 python3-venv"
        echo "  Fedora:                     dnf install python3"
        echo "  macOS:                      brew install python"
        echo "  or set PYTHON=/path/to/python"
    } >&2
fi
exit 1
