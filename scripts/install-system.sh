#!/bin/sh
# Installs the system programs of the tests, one after another, because package managers hold a lock; apt's lists are updated
# once. Never fails: each script reports what is missing; its tests then skip on a laptop and fail in CI.
set -eu
cd "${0%/*}/.."

APT_UPDATED=$(mktemp -u)
export APT_UPDATED
trap 'rm -f "$APT_UPDATED"' EXIT

for program in java browser haproxy faketime wrk deploy; do
    "scripts/install-$program.sh" || true
done
