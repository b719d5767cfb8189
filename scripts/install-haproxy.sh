#!/bin/sh
# Installs HAProxy for `make cluster` and its test if that needs no password. Does nothing if it is installed.
# Never fails: it reports what to install; the test then skips on a laptop and fails in CI.
set -eu
. "${0%/*}/packages.sh"

# Debian installs it in the folder for administrators' programs.
PATH=$PATH:/usr/sbin:/usr/local/sbin

if command -v haproxy >/dev/null 2>&1; then
    exit 0
fi

install_package haproxy haproxy haproxy haproxy

if ! command -v haproxy >/dev/null 2>&1; then
    {
        echo "veilmq: \`make cluster\` and its test need HAProxy; without it, they do not run."
        echo "  Debian, Ubuntu:  sudo apt-get install haproxy"
        echo "  Fedora:          sudo dnf install haproxy"
        echo "  Alpine:          apk add haproxy"
        echo "  macOS:           brew install haproxy"
    } >&2
fi
