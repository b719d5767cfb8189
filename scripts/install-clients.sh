#!/bin/sh
# Installs the queue clients that tests/clients runs against a real server, each apart from .venv and from the others:
# what tests/clients/python/<client>.txt pins into .clients/<client>, what tests/clients/javascript/package-lock.json pins
# into node_modules beside it.
# Does nothing for a client that is there as pinned. Never fails: it says what is missing and why, and the tests
# of that client then skip on a laptop and fail in CI.
set -eu
cd "$(dirname "$0")/.."

python=.venv/bin/python
node_is_new='process.exit(Number(parseInt(process.versions.node) < 20))'
mkdir -p .clients

# One client: install NAME FOLDER WANTED COMMAND...; its stamp says what is there, a half-finished one has none.
install() {
    name=$1 folder=$2 wanted=$3 stamp=.clients/$1.stamp
    shift 3
    if [ -d "$folder" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    rm -f "$stamp"
    echo "veilmq: installing the client $name for the tests"
    if "$@" >".clients/$name.log" 2>&1; then
        echo "$wanted" >"$stamp"
    else
        echo "veilmq: could not install the client $name, its tests will not run; the reason:" >&2
        tail -n 15 ".clients/$name.log" >&2
    fi
}

python_packages() {
    rm -rf ".clients/$1"
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
        --target ".clients/$1" --requirement "tests/clients/python/$1.txt"
}

python_client() {
    install "$1" ".clients/$1" "$("$python" -V) $(cksum <"tests/clients/python/$1.txt")" python_packages "$1"
}

node_modules() {
    npm --prefix tests/clients/javascript ci --ignore-scripts --no-audit --no-fund
}

javascript_client() {
    if ! command -v npm >/dev/null 2>&1 || ! node -e "$node_is_new" 2>/dev/null; then
        rm -f .clients/javascript.stamp
        {
            echo "veilmq: the tests of the JavaScript clients need node 20 or newer and npm; without, they do not run."
            echo "  Debian, Ubuntu:  sudo apt-get install nodejs npm"
            echo "  macOS:           brew install node"
            echo "  elsewhere:       https://nodejs.org"
        } >&2
        return 0
    fi
    install javascript tests/clients/javascript/node_modules "$(cksum <tests/clients/javascript/package-lock.json)" node_modules
}

python_client boto3_query &
python_client celery_sqs &
python_client sqs_extended &
javascript_client &
wait
