#!/bin/sh
# Installs HAProxy for `make cluster` and its test where that needs no password. Does nothing where it is installed.
# Never fails: it says what to install, and the test then skips on a laptop and fails in CI.
set -eu

# Debian puts it beside the programs of administrators.
PATH=$PATH:/usr/sbin:/usr/local/sbin

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

may_be_root() { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }; }

with_apt() {
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy
}

if command -v haproxy >/dev/null 2>&1; then
    exit 0
fi

if command -v brew >/dev/null 2>&1; then
    brew install haproxy || true
elif command -v apt-get >/dev/null 2>&1 && may_be_root; then
    with_apt || true
elif command -v dnf >/dev/null 2>&1 && may_be_root; then
    as_root dnf install -y -q haproxy || true
elif command -v apk >/dev/null 2>&1 && may_be_root; then
    as_root apk add -q haproxy || true
fi

if ! command -v haproxy >/dev/null 2>&1; then
    {
        echo "veilmq: \`make cluster\` and its test need HAProxy; without, they do not run."
        echo "  Debian, Ubuntu:  sudo apt-get install haproxy"
        echo "  Fedora:          sudo dnf install haproxy"
        echo "  Alpine:          apk add haproxy"
        echo "  macOS:           brew install haproxy"
    } >&2
fi
