#!/bin/sh
# Installs a Java runtime for the tests on Spark where that needs no password. Does nothing where Java 17 or newer runs.
# Never fails: it says what to install, and those tests then skip on a laptop and fail in CI.
set -eu

# Spark takes the Java of JAVA_HOME where that is set, else the one on the path.
new_enough() {
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
    [ "${major:-0}" -ge 17 ]
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

may_be_root() { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }; }

# The newest of these that the distribution has.
with_apt() {
    as_root apt-get update -qq
    for package in openjdk-21-jre-headless openjdk-17-jre-headless; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"
            return
        fi
    done
}

if new_enough; then
    exit 0
fi

if command -v brew >/dev/null 2>&1; then
    brew install openjdk@21 || true
elif command -v apt-get >/dev/null 2>&1 && may_be_root; then
    with_apt || true
elif command -v dnf >/dev/null 2>&1 && may_be_root; then
    as_root dnf install -y -q java-21-openjdk-headless || true
elif command -v apk >/dev/null 2>&1 && may_be_root; then
    as_root apk add -q openjdk21-jre-headless || true
fi

if ! new_enough; then
    {
        echo "veilmq: the tests on Spark need Java 17 or newer (and JAVA_HOME, where set, must be it); without, they do not run."
        echo "  Debian, Ubuntu:  sudo apt-get install openjdk-21-jre-headless   (or openjdk-17-jre-headless)"
        echo "  Fedora:          sudo dnf install java-21-openjdk-headless"
        echo "  Alpine:          apk add openjdk21-jre-headless"
        echo "  macOS:           brew install openjdk@21, then export JAVA_HOME=\$(brew --prefix openjdk@21)"
        echo "  elsewhere:       https://adoptium.net"
    } >&2
fi
