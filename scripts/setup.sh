#!/bin/sh
# Makes .venv and installs veilmq into it, editable: scripts/setup.sh EXTRAS [FOLDER], for example "all,dev". Extras that
# conflict with the development environment use another folder. If the extras include pytest, the fixtures of
# packages/pytest-veilmq are installed too.
# Does nothing if pyproject.toml and the folder are unchanged and the Python still runs, so every command may call it. An
# interrupted set-up leaves no stamp and is repeated.
set -eu
cd "$(dirname "$0")/.."

extras=$1
folder=${2:-.venv}
python=$folder/bin/python
stamp=$folder/set-up-$(echo "$extras" | tr ',' '-')
wanted=$(cat pyproject.toml packages/*/pyproject.toml | cksum)

# The scripts in bin contain the path of their folder, so a moved folder is recreated.
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
