"""The Helm chart and the Compose files: validated by their own programs, and used to start servers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import urllib3
import yaml
from jsonschema import Draft202012Validator

from tests.conftest import EVERYTHING, need
from tests.deploy.test_files import COMPOSE, DEPLOY, image_environment, monitoring, served
from tests.release import Failed, run
from tests.server.keys import written
from tests.tidy.tree import ROOT

pytestmark = EVERYTHING

CHART = DEPLOY / "helm" / "veilmq"
EXAMPLES = sorted((CHART / "ci").glob("*-values.yaml"))
TOOLS = ROOT / ".clients" / "charts"
HOW = "Helm, the loader of compose and schemas (scripts/install-charts.sh)"
CLOSING_S = 10  # enough to close a store
VERSIONS = ("1.25", "1.37")
"""The oldest Kubernetes that the chart supports, and the newest one."""


@pytest.fixture(autouse=True)
def tools() -> None:
    need(all((TOOLS / f"{name}.stamp").exists() for name in ("helm", "compose", "operator", "schemas")), HOW)


def templated(values: Path, *options: str) -> list[dict[str, Any]]:
    """Return the resources of the chart with ``values``."""
    options = ("--kube-version", VERSIONS[-1], *options)
    made = run(TOOLS / "helm", "template", "demo", CHART, "--values", values, *options)
    return [each for each in yaml.safe_load_all(made) if each is not None]


def pod(resources: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [each["spec"]["template"]["spec"] for each in resources if each["kind"] in {"StatefulSet", "Deployment"}]
    assert isinstance(found, dict)
    return found


example = pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)


@example
def test_helm_lints_the_chart(values: Path) -> None:
    assert "0 chart(s) failed" in run(TOOLS / "helm", "lint", "--strict", CHART, "--values", values)


@example
def test_resources_match_the_schemas_of_kubernetes(values: Path, tmp_path: Path) -> None:
    resources = [each for each in templated(values) if each["kind"] != "ServiceMonitor"]
    file = tmp_path / "resources.yaml"
    file.write_text(yaml.safe_dump_all(resources), encoding="utf-8")
    versions = [f"--kubernetes-version={version}" for version in VERSIONS]
    program = f"import sys; sys.path.append({str(TOOLS / 'schemas')!r}); "
    program += "from kubernetes_validate.__main__ import main; sys.exit(main())"
    output = run(sys.executable, "-c", program, "--strict", *versions, file)
    assert output.count("passed for resource") == len(resources) * len(VERSIONS)


@example
def test_a_service_monitor_matches_the_schema_of_its_operator(values: Path) -> None:
    """Unknown members are errors here; Kubernetes drops them silently."""
    text = (TOOLS / "operator" / "monitoring.coreos.com_servicemonitors.yaml").read_text(encoding="utf-8")
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    validator = Draft202012Validator(closed(version["schema"]["openAPIV3Schema"]))
    for monitor in (each for each in templated(values) if each["kind"] == "ServiceMonitor"):
        validator.validate(monitor)
        monitor["spec"]["endpoints"][0]["prot"] = "metrics"
        assert not validator.is_valid(monitor)


def closed(schema: Any) -> Any:
    """Return ``schema`` without additional properties."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        found.setdefault("additionalProperties", False)
    return found


def test_the_examples_cover_every_kind_of_resource() -> None:
    found = {values.stem: [each["kind"] for each in templated(values)] for values in EXAMPLES}
    always = ["PodDisruptionBudget", "Service", "Service"]
    assert found == {
        "closed-values": [*always, "StatefulSet", "ServiceMonitor"],
        "postgres-values": [*always, "Deployment", "ServiceMonitor"],
        "volume-values": [*always, "StatefulSet"],
    }


@example
def test_services_and_monitors_select_the_pods_and_their_ports(values: Path) -> None:
    resources = templated(values)
    (workload,) = [each for each in resources if each["kind"] in {"StatefulSet", "Deployment"}]
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    ports = {port["name"] for port in pod(resources)["containers"][0]["ports"]}
    services = [each for each in resources if each["kind"] == "Service"]
    selectors = [each["spec"]["selector"] for each in services]
    selectors += [
        each["spec"]["selector"]["matchLabels"] for each in resources if each["kind"] == "PodDisruptionBudget"
    ]
    assert all(selector.items() <= labels for selector in (*selectors, workload["spec"]["selector"]["matchLabels"]))
    assert {port["targetPort"] for each in services for port in each["spec"]["ports"]} == ports
    for monitor in (each["spec"] for each in resources if each["kind"] == "ServiceMonitor"):
        wanted = monitor["selector"]["matchLabels"].items()
        (chosen,) = [each for each in services if wanted <= each["metadata"]["labels"].items()]
        assert {each["port"] for each in monitor["endpoints"]} == {port["name"] for port in chosen["spec"]["ports"]}


@example
def test_a_server_starts_with_the_variables_of_its_pod(values: Path, tmp_path: Path) -> None:
    """The test replaces mounted keys and certificates, and uses a data folder instead of a database."""
    container = pod(templated(values))["containers"][0]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert (given.pop("VEILMQ_STORE", "") is None) == ("postgres" in values.stem)
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    issued = trustme.CA().issue_cert("127.0.0.1")
    (tmp_path / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (tmp_path / "tls.key").write_bytes(issued.private_key_pem.bytes())
    written(tmp_path / "keys.toml")
    for name, value in given.items():
        if value.startswith("/etc/veilmq/"):
            assert str(Path(value).parent) in mounted
            given[name] = str(tmp_path / Path(value).name)
    with served(tmp_path / "log", "--data", str(tmp_path / "data"), **{**image_environment(), **given}) as server:
        probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
        assert {probe["port"] for probe in probes} == {"metrics"}
        for probe in probes:
            assert urllib3.request("GET", monitoring(server) + probe["path"]).status == 200


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ('postgres.existingSecrets="veilmq"', "existingSecrets"),
        ("settings.port=1", "port"),
        ("settings.admin_port=1", "admin_port"),
        ("settings.drain_s_max=0.5", "drain_s_max"),
    ],
)
def test_invalid_values_of_the_chart_are_refused(value: str, named: str) -> None:
    with pytest.raises(Failed, match=f"values don't meet the specifications[^$]*{named}"):
        templated(EXAMPLES[0], "--set-json", value)


def test_several_pods_require_a_database() -> None:
    volume, postgres = (CHART / "ci" / f"{name}-values.yaml" for name in ("volume", "postgres"))
    with pytest.raises(Failed, match=r"replicas needs postgres\.existingSecret: only one pod"):
        templated(volume, "--set", "postgres.replicas=2")
    for values, given, pods in ((volume, "1", 1), (postgres, "null", 2), (postgres, "1", 1), (postgres, "3", 3)):
        workloads = templated(values, "--set", f"postgres.replicas={given}")
        assert [each["spec"]["replicas"] for each in workloads if "replicas" in each["spec"]] == [pods]


@pytest.mark.parametrize(("given", "drain_s"), [((), 20), (("--set", "settings.drain_s_max=3600"), 3_600)])
def test_the_grace_period_of_a_pod_covers_its_drain(given: tuple[str, ...], drain_s: int) -> None:
    made = pod(templated(CHART / "values.yaml", *given))
    stops_s = int(made["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert made["terminationGracePeriodSeconds"] >= stops_s + drain_s + CLOSING_S


@pytest.mark.parametrize("name", ["single.yaml", "postgres.yaml"])
def test_docker_compose_loads_its_files(name: str) -> None:
    """The build contexts and mounted files exist."""
    loaded = json.loads(run(TOOLS / "compose", "-no-interpolation", "-format", "json", name, cwd=COMPOSE))
    for service in loaded["services"].values():
        assert service["restart"] == "unless-stopped"
        if "build" in service:
            context = Path(service["build"]["context"])
            assert (context, context / service["build"]["dockerfile"]) == (ROOT, DEPLOY / "Containerfile")
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        for mount in service["volumes"]:
            assert mount["type"] == "volume" or Path(mount["source"]).exists()
