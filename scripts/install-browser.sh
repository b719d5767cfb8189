#!/bin/sh
# Installs Chromium for the browser tests of the console, with the system's package manager if that needs no password, and
# axe, which finds accessibility barriers, as pinned in tests/console/axe/package-lock.json. Skips what is installed.
# Never fails: it reports what is missing; those tests then skip on a laptop and fail in CI.
set -eu
. "${0%/*}/packages.sh"
cd "${0%/*}/.."

axe=tests/console/axe

# The tests' own search for a browser, which includes the application folders of macOS.
python=$(scripts/find-python.sh)
has_browser() { "$python" tests/console/chromium.py >/dev/null 2>&1; }

has_axe() { [ -f "$axe/node_modules/axe-core/axe.min.js" ] && [ "$(cat "$axe/node_modules/.of" 2>/dev/null)" = "$wanted" ]; }

if ! has_browser; then
    install_package "--cask chromium" "chromium-headless-shell chromium chromium-browser" chromium chromium
fi
if ! has_browser; then
    {
        echo "veilmq: the browser tests of the console need Chromium or Chrome; without it, they do not run."
        echo "  Debian, Ubuntu:  sudo apt-get install chromium"
        echo "  Fedora:          sudo dnf install chromium"
        echo "  Alpine:          apk add chromium"
        echo "  macOS:           brew install --cask chromium"
    } >&2
fi

wanted=$(cksum <"$axe/package-lock.json")
if ! has_axe; then
    if ! command -v npm >/dev/null 2>&1; then
        echo "veilmq: the tests of the console's accessibility need npm to install axe-core; without it, they do not run." >&2
    elif npm --prefix "$axe" ci --ignore-scripts --no-audit --no-fund --silent; then
        echo "$wanted" >"$axe/node_modules/.of"
    else
        echo "veilmq: could not install axe-core, the tests of the console's accessibility will not run." >&2
    fi
fi
