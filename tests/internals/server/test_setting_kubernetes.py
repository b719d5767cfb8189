"""What Kubernetes sets for a Service called veilmq does not stop a server, but for what has the name of a setting."""

import pytest

from veilmq.server.settings import ServerSettings, SettingError, resolve

LINK = "tcp://10.0.0.1:9324"


@pytest.mark.parametrize("service", ["VEILMQ", "VEILMQ_QUEUES", "VEILMQ_2"])
def test_the_variables_of_a_service_are_no_settings(service: str) -> None:
    """All that Kubernetes sets for a Service with a named port; the Service may have more words in its name."""
    environment = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "9324",
        f"{service}_SERVICE_PORT_QUEUE_CLIENTS": "9324",
        f"{service}_PORT_9324_TCP": LINK,
        f"{service}_PORT_9324_TCP_PROTO": "tcp",
        f"{service}_PORT_9324_TCP_PORT": "9324",
        f"{service}_PORT_9324_TCP_ADDR": "10.0.0.1",
    }
    if service != "VEILMQ":
        environment[f"{service}_PORT"] = LINK
    assert resolve(flags={}, environment=environment) == ServerSettings()


@pytest.mark.parametrize("link", [LINK, "udp://10.0.0.1:53", "tcp://[fd00::1]:9324"])
@pytest.mark.parametrize(("variable", "name"), [("VEILMQ_PORT", "port"), ("VEILMQ_ADMIN_PORT", "admin_port")])
def test_a_setting_that_kubernetes_has_overwritten(variable: str, name: str, link: str) -> None:
    """The error names the cause and the remedy, also where a flag gives the setting."""
    with pytest.raises(SettingError) as caught:
        resolve(flags={name: "1"}, environment={variable: link})
    assert str(caught.value) == (
        f"{name} = '{link}' (environment variable {variable}): "
        "this is what Kubernetes sets for a Service of that name; "
        "put enableServiceLinks: false into the pod's spec, or rename the Service"
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VEILMQ_SERVICE", "x"),
        ("VEILMQ_SERVICE_HOSTS", "10.0.0.1"),
        ("VEILMQ_PORT_9324", LINK),
        ("VEILMQ_PORT_9324_HTTP", LINK),
        ("VEILMQ_PORT_9324_TCP_HOST", "10.0.0.1"),
        ("VEILMQ_PROT", LINK),
        ("VEILMQ_QUEUES_PORT", "9324"),
        ("VEILMQ_QUEUES_PORT", "tcp://10.0.0.1"),
    ],
)
def test_what_kubernetes_does_not_set_is_an_unknown_setting(variable: str, value: str) -> None:
    """Nearly is not enough: a misspelt setting does not pass."""
    with pytest.raises(SettingError, match=f"^{variable} .*unknown setting"):
        resolve(flags={}, environment={variable: value})


def test_a_port_that_is_neither_number_nor_link() -> None:
    """The ordinary error."""
    with pytest.raises(SettingError, match="must be a whole number from 0 to 65535"):
        resolve(flags={}, environment={"VEILMQ_PORT": "tcp://10.0.0.1"})
