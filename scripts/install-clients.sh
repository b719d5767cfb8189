#!/bin/sh
# Installs the queue clients that tests/clients runs against a real server, each apart from .venv and from the others:
# what tests/clients/python/<client>.txt pins into .clients/<client>, what tests/clients/javascript/package-lock.json pins
# into node_modules beside it. With the argument `all` also those that make test-all alone runs, some of which are compiled.
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

# A client that is built from tests/clients/FOLDER by a program: compiled NAME FOLDER PROGRAM COMMAND...
compiled_client() {
    name=$1 folder=tests/clients/$2 program=$3
    shift 3
    if ! command -v "$program" >/dev/null 2>&1; then
        rm -f ".clients/$name.stamp"
        echo "veilmq: the tests of the client $name need $program; without it, they do not run." >&2
        return 0
    fi
    install "$name" ".clients/$name" "$(find "$folder" -type f | sort | xargs cat | cksum)" "$@"
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
    compiled_client go_sdk go go go_program
    compiled_client java java mvn java_programs
    compiled_client rust_sdk rust cargo rust_program
    install php .clients/php "$(cksum <scripts/install-php.sh)" php_packages
    wait
fi
