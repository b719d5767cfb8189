#!/bin/sh
# Installs wrk, the load generator of `make bench`, where that needs no password; else says what to install.
set -eu

if command -v wrk >/dev/null 2>&1; then
    exit 0
fi

may_sudo() { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }

if command -v brew >/dev/null 2>&1; then
    brew install wrk
elif command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq wrk
elif command -v apt-get >/dev/null 2>&1 && may_sudo; then
    sudo -n apt-get update -qq && sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq wrk
fi

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
