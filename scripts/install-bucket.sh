#!/bin/sh
# Installs the dependencies of the bucket tests into .clients/bucket: versitygw, an S3 server, built from its Go module, and
# the jars with which Spark accesses S3, from Maven's central repository, both pinned here. Of the AWS SDK only the modules
# that S3A calls are installed (18 MB; its bundle has 600 MB). The version of hadoop-aws is that of PySpark's Hadoop.
# Skips what is installed. Never fails: it reports what is missing; those tests then skip on a laptop and fail in CI.
set -eu
. "${0%/*}/pinned.sh"
cd "${0%/*}/.."

gateway=github.com/versity/versitygw/cmd/versitygw@v1.8.0
sdk=2.35.4
folder=$PWD/.clients/bucket
tests="the tests of buckets"

spark=$(.venv/bin/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
hadoop=$(find "$spark/jars" -name 'hadoop-client-api-*.jar' | sed 's/.*-api-\(.*\)\.jar/\1/')
jars=org.apache.hadoop:hadoop-aws:$hadoop
for module in apache-client s3 s3-transfer-manager sts; do
    jars=$jars,software.amazon.awssdk:$module:$sdk
done

build_gateway() { GOBIN=$folder go install "$gateway"; }

# spark-submit fetches packages before it runs a program; this program does nothing. It has its own home, because Maven
# leaves descriptions without jars in ~/.m2 (for the Java clients), and Ivy then fails instead of fetching the jars.
fetch_jars() {
    : >"$folder/nothing.py"
    SPARK_HOME=$spark PYSPARK_PYTHON=.venv/bin/python "$spark/bin/spark-submit" \
        --packages "$jars" --exclude-packages software.amazon.awssdk:bundle \
        --conf "spark.jars.ivy=$folder/ivy" --driver-java-options "-Duser.home=$folder/ivy" "$folder/nothing.py" &&
        mv "$folder/ivy/jars" "$folder/jars" && rm -rf "$folder/ivy"
}

mkdir -p "$folder"
if has_go versitygw; then
    install versitygw "$folder/versitygw" "$gateway" build_gateway
fi
install jars "$folder/jars" "$jars" fetch_jars
