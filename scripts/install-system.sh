#!/bin/sh
# Installs the programs of the system that the tests need, one after another, as package managers hold a lock; apt's lists
# are updated once. Never fails: each script says what is missing, and its tests then skip on a laptop and fail in CI.
set -eu
cd "${0%/*}/.."

APT_UPDATED=$(mktemp -u)
export APT_UPDATED
trap 'rm -f "$APT_UPDATED"' EXIT

for program in java browser haproxy faketime wrk deploy; do
    "scripts/install-$program.sh" || true
done
