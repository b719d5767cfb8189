#!/bin/sh
# Installs what the tests of buckets need, into .clients/bucket: versitygw, an S3 server, built from its Go module, and the
# jars with which Spark reaches S3, from Maven's central repository. Both as pinned here; of the AWS SDK only the modules
# that S3A calls (18 MB), as its bundle has 600 MB. The version of hadoop-aws is that of PySpark's Hadoop.
# Does nothing for what is there. Never fails: it says what is missing, and those tests then skip on a laptop and fail in CI.
set -eu
cd "${0%/*}/.."

gateway=github.com/versity/versitygw/cmd/versitygw@v1.8.0
sdk=2.35.4
folder=$PWD/.clients/bucket

spark=$(.venv/bin/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
hadoop=$(find "$spark/jars" -name 'hadoop-client-api-*.jar' | sed 's/.*-api-\(.*\)\.jar/\1/')
jars=org.apache.hadoop:hadoop-aws:$hadoop
for module in apache-client s3 s3-transfer-manager sts; do
    jars=$jars,software.amazon.awssdk:$module:$sdk
done

# One part: install NAME WANTED COMMAND...; its stamp says what is there, a half-finished one has none.
install() {
    name=$1 wanted=$2 stamp=$folder/$1.stamp
    shift 2
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    rm -rf "$stamp" "${folder:?}/$name"
    echo "veilmq: installing $name for the tests of buckets"
    if "$@" >"$folder/$name.log" 2>&1; then
        echo "$wanted" >"$stamp"
    else
        echo "veilmq: could not install $name, the tests of buckets will not run; the reason:" >&2
        tail -n 15 "$folder/$name.log" >&2
    fi
}

build_gateway() { GOBIN=$folder go install "$gateway"; }

# spark-submit fetches packages before it runs a program; this one does nothing.
fetch_jars() {
    : >"$folder/nothing.py"
    SPARK_HOME=$spark PYSPARK_PYTHON=.venv/bin/python "$spark/bin/spark-submit" --packages "$jars" \
        --exclude-packages software.amazon.awssdk:bundle --conf "spark.jars.ivy=$folder/ivy" "$folder/nothing.py" &&
        mv "$folder/ivy/jars" "$folder/jars" && rm -rf "$folder/ivy"
}

mkdir -p "$folder"
if command -v go >/dev/null 2>&1; then
    install versitygw "$gateway" build_gateway
else
    {
        echo "veilmq: the tests of buckets need Go 1.26 or newer, to build versitygw; without, they do not run."
        echo "  macOS:           brew install go"
        echo "  elsewhere:       https://go.dev/dl"
    } >&2
fi
install jars "$jars" fetch_jars
