#!/bin/sh
# Makes .venv and installs veilmq into it, editable: scripts/setup.sh EXTRAS [FOLDER], for example "all,dev". What does not
# go together with the rest of development has a folder of its own instead of .venv. Where the extras have pytest, the
# fixtures of packages/pytest-veilmq come along.
# Does nothing when that was done for these pyproject.toml, in this folder, with a Python that still runs, so it may be
# called before every command. A half-finished set-up leaves no stamp and is done again.
set -eu
cd "$(dirname "$0")/.."

extras=$1
folder=${2:-.venv}
python=$folder/bin/python
stamp=$folder/set-up-$(echo "$extras" | tr ',' '-')
wanted=$(cat pyproject.toml packages/*/pyproject.toml | cksum)

# The scripts in bin name the folder that they were made in, so a moved one is made anew.
runs() { [ "$(cat "$folder/made-in" 2>/dev/null)" = "$(pwd)" ] && "$python" -c '' 2>/dev/null; }

if runs && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

if ! runs || ! "$python" -m pip --version >/dev/null 2>&1; then
    found=$(scripts/find-python.sh)
    echo "veilmq: making $folder with $found ($("$found" -V))"
    "$found" -m venv --clear "$folder"
    pwd >"$folder/made-in"
fi

set -- --editable ".[$extras]"
case ,$extras, in *,dev,* | *,docs,*) set -- "$@" --editable packages/pytest-veilmq ;; esac
rm -f "$stamp"
echo "veilmq: installing veilmq[$extras] into $folder (a minute or two the first time)"
if ! "$python" -m pip install --quiet --disable-pip-version-check "$@"; then
    echo "veilmq: pip could not install the packages; its reason is above." >&2
    exit 1
fi
echo "$wanted" >"$stamp"
