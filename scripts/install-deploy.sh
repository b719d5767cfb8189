#!/bin/sh
# Installs the dependencies of the tests of deploy/ if that needs no password: systemd-analyze, and promtool into
# .clients/promtool (Debian's package of Prometheus also has a service and 200 MB). Skips what is installed.
# Never fails: it reports what is missing; those tests then skip on a laptop and fail in CI.
set -eu
. "${0%/*}/packages.sh"
cd "${0%/*}/.."

folder=$PWD/.clients/promtool

has_promtool() { [ -x "$folder/promtool" ] || command -v promtool >/dev/null 2>&1; }

unpack_promtool() (
    [ -e "${APT_UPDATED:-}" ] || as_root apt-get update -qq
    mkdir -p "$folder" && cd "$folder" && apt-get download -qq prometheus &&
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool
    rm -f prometheus_*.deb
)

if ! has_promtool; then
    if command -v apt-get >/dev/null 2>&1 && may_be_root; then
        unpack_promtool || true
    else
        install_package prometheus prometheus golang-github-prometheus prometheus
    fi
fi
if ! has_promtool; then
    {
        echo "veilmq: the tests of alerts need promtool; without it, they do not run."
        echo "  Debian, Ubuntu:  sudo apt-get install prometheus"
        echo "  macOS:           brew install prometheus"
        echo "  elsewhere:       https://prometheus.io/download"
    } >&2
fi

if ! command -v systemd-analyze >/dev/null 2>&1; then
    [ "$(uname)" != Linux ] || install_package systemd systemd systemd systemd
fi
