#!/bin/sh
# Installs wrk, the load generator of `make bench`, if that needs no password; otherwise reports what to install.
set -eu
. "${0%/*}/packages.sh"

if command -v wrk >/dev/null 2>&1; then
    exit 0
fi

install_package wrk wrk wrk wrk

if ! command -v wrk >/dev/null 2>&1; then
    {
        echo "veilmq: \`make bench\` needs wrk, and this script may not install it here."
        echo "  Debian, Ubuntu:  sudo apt-get install wrk"
        echo "  Fedora:          sudo dnf install wrk"
        echo "  Alpine:          apk add wrk"
        echo "  macOS:           brew install wrk"
        echo "  from source:     https://github.com/wg/wrk"
    } >&2
    exit 1
fi
