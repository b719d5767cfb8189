"""The files of deploy/ for systemd, Compose, Prometheus and Grafana: started or validated by their own programs."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import need
from tests.proofs.served import Served, StartNode, free_ports, wait_until
from tests.release import run
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer, SystemClock

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "veilmq.rules.yaml"
RULES_TEST = DEPLOY / "prometheus" / "veilmq.rules.test.yaml"
DASHBOARD = DEPLOY / "grafana" / "veilmq.json"
UNIT = DEPLOY / "systemd" / "veilmq.service"
COMPOSE = DEPLOY / "compose"
HOW = "(scripts/install-deploy.sh)"
PLACES = os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin"
EXPOSURE_MAX = 3.0


# The environment of the image and of Compose.


def image_environment() -> dict[str, str]:
    """Return the settings in the Containerfile."""
    return dict(re.findall(r"(VEILMQ_\w+)=(\S+)", (DEPLOY / "Containerfile").read_text(encoding="utf-8")))


def composed(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8"))
    return loaded


@contextmanager
def served(log: Path, *options: str, **environment: str) -> Iterator[Served]:
    """Run a server on free ports."""
    server = Served("--metrics-port", "0", *options, log=log)
    server.environment = environment
    with server:
        yield server


def monitoring(server: Served) -> str:
    """Return the endpoint for health and metrics that ``server`` prints."""
    printed = re.compile(r"only health and metrics are at http://[\d.]+:(\d+)\n")
    wait_until(lambda: printed.search(server.log.read_text(encoding="utf-8")))
    port = printed.findall(server.log.read_text(encoding="utf-8"))[-1]
    return f"http://127.0.0.1:{port}"


def test_a_server_starts_with_the_settings_of_the_image(tmp_path: Path) -> None:
    """Its ports are those that the image exposes and the Compose file publishes."""
    environment = image_environment()
    (service,) = composed("single.yaml")["services"].values()
    assert "environment" not in service
    with served(tmp_path / "log", "--data", str(tmp_path / "data"), **environment) as server:
        assert urllib3.request("GET", monitoring(server) + "/health/ready").data == b"ready\n"
        assert urllib3.request("GET", server.endpoint.replace("127.0.0.1", "localhost") + "/").status == 404
    exposed = re.findall(r"^EXPOSE (.*)", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert exposed == [f"9324 9325 {environment['VEILMQ_METRICS_PORT']}"]
    assert service["ports"] == ["127.0.0.1:9324:9324", f"127.0.0.1:{environment['VEILMQ_METRICS_PORT']}:9326"]


def test_the_balancer_of_compose_fails_over_between_nodes(
    new_database: str, start_node: StartNode, tmp_path: Path
) -> None:
    """It runs with its own configuration file, except for addresses."""
    haproxy = shutil.which("haproxy", path=PLACES)
    need(haproxy, "HAProxy (scripts/install-haproxy.sh)")
    assert haproxy is not None
    services = composed("postgres.yaml")["services"]
    assert set(services) == {"postgres", "node-1", "node-2", "haproxy"}
    for name in ("node-1", "node-2"):
        assert services[name]["environment"] == {
            "VEILMQ_STORE": "postgresql://veilmq@postgres/veilmq",  # a password may have characters that no URL takes
            "PGPASSWORD": services["postgres"]["environment"]["POSTGRES_PASSWORD"],
        }
    nodes = {name: start_node("--metrics-port", "0") for name in ("node-1", "node-2")}
    config = (COMPOSE / "haproxy.cfg").read_text(encoding="utf-8")
    run(haproxy, "-c", "-f", COMPOSE / "haproxy.cfg")
    (port,) = free_ports(1)
    config = config.replace("bind :9324", f"bind 127.0.0.1:{port}")
    for name, node in nodes.items():
        config = config.replace(
            f"{name} {name}:9324", f"{name} 127.0.0.1:{node.port} port {urlsplit(monitoring(node)).port}"
        )
    (tmp_path / "haproxy.cfg").write_text(config, encoding="utf-8")
    endpoint = f"http://127.0.0.1:{port}"
    with subprocess.Popen([haproxy, "-db", "-f", tmp_path / "haproxy.cfg"]) as balancer:
        try:
            wait_until(lambda: status(endpoint) == 404, what="the balancer finds no node")
            with HttpQueueClient(endpoint) as client:
                client.create_queue("orders")
                client.send("orders", "hello")
                nodes["node-1"].kill()
                assert [message.body for message in client.receive("orders", wait_s=5)] == ["hello"]
        finally:
            balancer.kill()


def status(url: str) -> int:
    """Return the status of a GET, or 0 without a reply."""
    try:
        return urllib3.request("GET", url, retries=False).status
    except urllib3.exceptions.HTTPError:
        return 0


# The service of systemd.


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A copy of the unit that starts the program of this environment."""
    need(shutil.which("systemd-analyze"), f"systemd-analyze {HOW}")
    text = UNIT.read_text(encoding="utf-8")
    assert text.count("/opt/veilmq/bin/veilmq") == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/veilmq/bin", str(Path(sys.executable).parent)), encoding="utf-8")
    return copy


def test_the_unit_is_valid_and_confined(unit: Path) -> None:
    assert run("systemd-analyze", "verify", "--man=no", unit, with_errors=True) == ""
    output = run("systemd-analyze", "security", "--no-pager", "--offline=yes", unit)
    (exposure,) = re.findall(r"Overall exposure level for veilmq\.service: ([\d.]+)", output)
    assert float(exposure) <= EXPOSURE_MAX
    lines = unit.read_text(encoding="utf-8").splitlines()
    assert {"StartLimitIntervalSec=0", "RestartPreventExitStatus=2"} <= {*lines}  # it waits for its database


def test_a_server_starts_with_the_settings_of_the_service(tmp_path: Path) -> None:
    config = DEPLOY / "systemd" / "veilmq.toml"
    with served(tmp_path / "log", "--config", str(config), "--data", str(tmp_path / "data")) as server:
        assert urllib3.request("GET", monitoring(server) + "/health/ready").status == 200
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    suggested = set(re.findall(r"^# (\w+) = ", config.read_text(encoding="utf-8"), re.MULTILINE))
    assert suggested == {"store", "host", "credentials"} <= known


# Alerts and the dashboard.


def promtool() -> str:
    found = shutil.which("promtool", path=f"{ROOT / '.clients' / 'promtool'}:{os.environ['PATH']}")
    need(found, f"promtool {HOW}")
    assert found is not None
    return found


def alerts() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> list[str]:
    """Return the expressions of the dashboard as Grafana sends them if all variables are "All"."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    variables = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*", "$queue": ".*"}
    for name, value in variables.items():
        found = [text.replace(name, value) for text in found]
    assert len(found) > 30
    assert not [text for text in found if "$" in text]
    return found


def test_each_alert_is_valid_tested_and_documented() -> None:
    assert "SUCCESS" in run(promtool(), "check", "rules", RULES)
    assert "SUCCESS" in run(promtool(), "test", "rules", RULES_TEST.name, cwd=RULES_TEST.parent)
    tested, page = RULES_TEST.read_text(encoding="utf-8"), (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert [name for name in alerts() if name not in tested or f"`{name}`" not in page] == []


def test_the_queries_of_panels_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(panels())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in run(promtool(), "check", "rules", file)


def test_panels_do_not_overlap() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


def scraped(server: RunningServer) -> tuple[set[str], set[str]]:
    """Return the names and labels of all metrics of ``server`` after some traffic."""
    server.queue("dead")
    jobs = server.queue("jobs", dead_letter_queue="dead", receives_max=3)
    with HttpQueueClient(server.endpoint) as client:
        client.send("jobs", "a")
        assert client.receive("jobs")
    queue = f"000000000000/{jobs.name}"
    for path, body in (
        (f"claims/{queue}/open", {"source": "s"}),
        (f"publications/{queue}/stage?writer=w&batch=0&attempt=a&part=0", {"messages": [{"body": "b"}]}),
    ):
        reply = urllib3.request("POST", f"{server.endpoint}/v1/{path}", body=json.dumps(body))
        assert reply.status == 200, reply.data
    text = urllib3.request("GET", f"{server.bound.metrics_endpoint}/metrics").data.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name for sample in samples}, {label for sample in samples for label in sample.labels}


def test_alerts_and_panels_use_existing_metrics_and_labels(tmp_path: Path, new_database: str) -> None:
    """Those of a server on either store, and those that Prometheus adds."""
    names, labels = {"up"}, {"job", "instance", "namespace"}
    for settings in ({"data": tmp_path}, {"store": new_database}):
        with RunningServer(clock=SystemClock(), metrics_port=0, **settings) as server:
            found = scraped(server)
        names, labels = names | found[0], labels | found[1]
    for text in (*alerts().values(), *panels()):
        bare = re.sub(r'"[^"]*"', "", text)
        grouped = {label.strip() for found in re.findall(r"\bby \(([^)]*)\)", bare) for label in found.split(",")}
        matched = {label for found in re.findall(r"\{([^}]*)\}", bare) for label in re.findall(r"(\w+)\s*[=!]", found)}
        assert grouped | matched <= labels, text
        metrics = set(re.findall(r"\b(?:veilmq|process)_\w+|\bup\b", bare))
        assert metrics, text
        assert metrics <= names, text
