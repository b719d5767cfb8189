#!/bin/sh
# Installs a Java runtime for the tests on Spark if that needs no password. Does nothing if Java 17 or newer runs.
# Never fails: it reports what to install; those tests then skip on a laptop and fail in CI.
set -eu
. "${0%/*}/packages.sh"

# Spark uses the Java of JAVA_HOME if set, otherwise the one on the path.
new_enough() {
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
    [ "${major:-0}" -ge 17 ]
}

if new_enough; then
    exit 0
fi

install_package openjdk@21 "openjdk-21-jre-headless openjdk-17-jre-headless" java-21-openjdk-headless openjdk21-jre-headless

if ! new_enough; then
    {
        echo "veilmq: the tests on Spark need Java 17 or newer (JAVA_HOME, if set, must name it); without it, they do not run."
        echo "  Debian, Ubuntu:  sudo apt-get install openjdk-21-jre-headless   (or openjdk-17-jre-headless)"
        echo "  Fedora:          sudo dnf install java-21-openjdk-headless"
        echo "  Alpine:          apk add openjdk21-jre-headless"
        echo "  macOS:           brew install openjdk@21, then export JAVA_HOME=\$(brew --prefix openjdk@21)"
        echo "  elsewhere:       https://adoptium.net"
    } >&2
fi
