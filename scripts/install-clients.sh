#!/bin/sh
# Installs the queue clients that tests/clients runs against a real server, each separate from .venv and from the others:
# tests/clients/python/<client>.txt into .clients/<client>, and tests/clients/javascript/package-lock.json into node_modules
# next to it. The argument `all` adds the clients of make test-all, some of which are compiled. Skips a client that is
# installed as pinned. Never fails: it reports what is missing and why; the tests of that client then skip on a laptop and
# fail in CI.
set -eu
. "${0%/*}/pinned.sh"
cd "${0%/*}/.."

python=.venv/bin/python
node_is_new='process.exit(Number(parseInt(process.versions.node) < 20))'
folder=$PWD/.clients
tests="the tests of clients"
mkdir -p .clients

python_packages() {
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
            echo "veilmq: the tests of the JavaScript clients need node 20 or newer and npm; without them, they do not run."
            echo "  Debian, Ubuntu:  sudo apt-get install nodejs npm"
            echo "  macOS:           brew install node"
            echo "  elsewhere:       https://nodejs.org"
        } >&2
        return 0
    fi
    install javascript tests/clients/javascript/node_modules "$(cksum <tests/clients/javascript/package-lock.json)" node_modules
}

# Build a client with PROGRAM from tests/clients/FOLDER: compiled_client NAME PLACE FOLDER PROGRAM COMMAND...
compiled_client() {
    name=$1 place=$2 source=tests/clients/$3 program=$4
    shift 4
    if ! command -v "$program" >/dev/null 2>&1; then
        rm -f ".clients/$name.stamp"
        echo "veilmq: the tests of the client $name need $program; without it, they do not run." >&2
        return 0
    fi
    install "$name" "$place" "$(find "$source" -type f | sort | xargs cat | cksum)" "$@"
}

go_program() {
    go build -C tests/clients/go -o "$PWD/.clients/go_sdk/sdk" .
}

rust_program() {
    cargo build --locked --manifest-path tests/clients/rust/Cargo.toml --target-dir .clients/rust_sdk
}

java_programs() {
    mvn --batch-mode --quiet --file tests/clients/java "-Doutput=$PWD/.clients/java" compile dependency:copy-dependencies \
        -DincludeScope=runtime "-DoutputDirectory=$PWD/.clients/java/lib"
}

php_packages() {
    mkdir -p .clients/php
    scripts/install-php.sh
}

python_client boto3_query &
python_client celery_sqs &
python_client sqs_extended &
javascript_client &
wait
if [ "${1:-}" = all ]; then
    python_client aioboto3_sqs &
    python_client dramatiq_sqs &
    python_client taskiq_sqs &
    compiled_client go_sdk .clients/go_sdk go go go_program
    compiled_client java .clients/java java mvn java_programs
    compiled_client rust_sdk .clients/rust_sdk/debug/sdk rust cargo rust_program
    install php .clients/php "$(cksum <scripts/install-php.sh)" php_packages
    wait
fi
