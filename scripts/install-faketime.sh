#!/bin/sh
# Installs libfaketime for the tests of clock steps if that needs no password. Does nothing if it is installed.
# Never fails: it reports what to install; the tests then skip on a laptop and fail in CI.
set -eu
. "${0%/*}/packages.sh"

is_there() { [ -n "$(find /usr/lib* -path '*/faketime/libfaketimeMT.so.1' 2>/dev/null | head -n 1)" ]; }

if is_there; then
    exit 0
fi

install_package libfaketime "libfaketime faketime" libfaketime libfaketime

if ! is_there; then
    {
        echo "veilmq: the tests of clock steps need libfaketime, on Linux; without it, they do not run."
        echo "  Debian, Ubuntu:  sudo apt-get install libfaketime"
        echo "  Fedora:          sudo dnf install libfaketime"
        echo "  Alpine:          apk add libfaketime"
    } >&2
fi
