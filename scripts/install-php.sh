#!/bin/sh
# Installs PHP with the SQS client of Debian (AsyncAws) for the test of that client. Does nothing if it is installed.
# Never fails: it reports what to install; the test then skips on a laptop and fails in CI.
set -eu
. "${0%/*}/packages.sh"

client=/usr/share/php/AsyncAws/Sqs/autoload.php

if [ -f "$client" ] && command -v php >/dev/null 2>&1; then
    exit 0
fi

if command -v apt-get >/dev/null 2>&1 && may_be_root; then
    for package in php-cli php-xml php-curl php-async-aws-sqs; do
        with_apt "$package" || true
    done
fi

if ! [ -f "$client" ]; then
    echo "veilmq: the test of the PHP client needs Debian's php-cli, php-xml, php-curl and php-async-aws-sqs." >&2
fi
