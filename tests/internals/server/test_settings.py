"""Server settings and their four sources, the variables that Kubernetes sets, and lists of allowed addresses."""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import pytest

from veilmq.server.settings import (
    SETTINGS,
    AllowList,
    ServerSettings,
    Setting,
    SettingError,
    is_special,
    resolve,
    unmapped,
)

NUMBERS = [row for row in SETTINGS if row.kind.allowed.startswith("a whole number")]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, so that no veilmq.toml of the developer is read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(
    *, flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None, file: str | None = None
) -> str:
    """Return the error of `resolve` for these sources; `file` is the text of veilmq.toml."""
    if file is not None:
        Path("veilmq.toml").write_text(file, encoding="utf-8")
    with pytest.raises(SettingError) as caught:
        resolve(flags=flags or {}, environment=environment or {})
    return str(caught.value)


def test_flags_override_the_environment_which_overrides_the_file() -> None:
    Path("veilmq.toml").write_text("port = 1001\nadmin_port = 1002\ndrain_s_max = 3\n", encoding="utf-8")
    environment = {"VEILMQ_PORT": "2001", "VEILMQ_ADMIN_PORT": "2002"}
    settings = resolve(flags={"port": "3001"}, environment=environment)
    assert (settings.port, settings.admin_port, settings.drain_s_max) == (3001, 2002, 3)


@pytest.mark.parametrize("setting", NUMBERS, ids=[row.name for row in NUMBERS])
@pytest.mark.parametrize("end", ["below", "above", "no-number"])
def test_an_out_of_range_number_is_an_error_that_names_its_source(setting: Setting, end: str) -> None:
    low, high = [int(word) for word in setting.kind.allowed.split() if word.isdigit()]
    value = {"below": str(low - 1), "above": str(high + 1), "no-number": "1e3"}[end]
    allowed = f"must be a whole number from {low} to {high}"
    assignment = f"{setting.name} = '{value}'"
    assert refusal(flags={setting.name: value}) == f"{assignment} (flag {setting.flag}): {allowed}"
    origin = f"environment variable {setting.variable}"
    assert refusal(environment={setting.variable: value}) == f"{assignment} ({origin}): {allowed}"
    assert refusal(file=f'{setting.name} = "{value}"') == f"{assignment} (file veilmq.toml): {allowed}"


@pytest.mark.parametrize(("flags", "words"), [
    pytest.param({"host": ""}, "must be an IP address or a host name", id="host-empty"),
    pytest.param({"host": "a b"}, "must be an IP address or a host name", id="host-blank"),
    pytest.param({"region": "Us East"}, "lower-case letters, digits and hyphens", id="region"),
    pytest.param({"account": "42"}, "must be 12 digits", id="account"),
    pytest.param({"log_level": "loud"}, "must be one of debug, info, warning, error", id="log-level"),
    pytest.param({"insecure": "yes"}, "must be true or false", id="switch"),
    pytest.param({"data": ""}, "must be the path of a folder", id="data"),
    pytest.param({"port": "٣"}, "must be a whole number", id="other-digits"),
    pytest.param({"port": True}, "must be a whole number", id="truth-is-no-number"),
    pytest.param({"port": "9325"}, "admin_port = '9325' (default): must differ from port", id="same-port"),
    pytest.param({"metrics_port": "9325"}, "must differ from admin_port", id="port-of-metrics"),
    pytest.param({"metrics_port": "none"}, "must be a whole number from 0 to 65535", id="no-port"),
    pytest.param({"push_allow": "http://hook.example/"}, "must be host names, addresses and networks", id="push-url"),
    pytest.param({"push_allow": ""}, "must be host names, addresses and networks", id="push-nowhere"),
    pytest.param({"push_certificate_url": "hook.example"}, "must be a URL that begins with http://", id="push-place"),
    pytest.param({"push_parallel_max": 0}, "must be a whole number from 1 to 1000", id="push-parallel"),
    pytest.param({"push_key": Path("k")}, "must be given with push_key", id="push-key-alone"),
    pytest.param({"push_certificate": Path("c")}, "must be given with push_certificate", id="push-certificate-alone"),
    pytest.param({"push_key": Path("k"), "push_certificate": Path("c")}, "push_allow (default): must be given with",
        id="push-key-without-hosts"),
    pytest.param({"events_to": ""}, "events_to = '' (flag --events-to): must be", id="events-nowhere"),
    pytest.param({"event_log": "lifecycle"}, "(flag --event-log): must be", id="event-log"),
    pytest.param({"events_period_s": 0}, "(flag --events-period-s): must be", id="events-period"),
    pytest.param({"events_per_file": 0}, "(flag --events-per-file): must be", id="events-per-file"),
    pytest.param({"events_waiting_max": 0}, "(flag --events-waiting-max): must be", id="events-waiting"),
    pytest.param({"routing_attribute": "a b"}, "(flag --routing-attribute): must be", id="routing-attribute"),
])  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused(flags: dict[str, object], words: str) -> None:
    assert words in refusal(flags=flags)


@pytest.mark.parametrize("name", ["host", "admin_host"])
@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org", "fe80::1%br-0.7"]
)
def test_listening_for_other_machines_needs_insecure(name: str, address: str) -> None:
    """So that queues are not opened to the network by accident."""
    text = refusal(flags={name: address})
    assert text.startswith(f"{name} = '{address}' (flag --{name.replace('_', '-')}): other machines can reach it")
    assert "--insecure" in text
    settings = resolve(flags={name: address, "insecure": True}, environment={})
    assert getattr(settings, name) == address


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "example.org"])
def test_with_credentials_only_the_admin_port_needs_insecure(address: str) -> None:
    """Passwords are entered on the admin port, so it needs a certificate as well."""
    keys: dict[str, object] = {"credentials": "keys.toml"}
    assert resolve(flags={"host": address, **keys}, environment={}).host == address
    text = refusal(flags={"admin_host": address, **keys})
    assert "both credentials (--credentials) and a certificate" in text
    assert "--insecure" in text
    both: dict[str, object] = {**keys, "tls_certificate": "c.pem", "tls_key": "k.pem"}
    assert resolve(flags={"admin_host": address, **both}, environment={}).admin_host == address


def test_console_proxy_needs_credentials() -> None:
    assert "needs credentials" in refusal(flags={"console_proxy": "10.0.0.1"})
    named = resolve(flags={"console_proxy": "10.0.0.1, fd00::/8", "credentials": "keys.toml"}, environment={})
    assert named.console_proxy == "10.0.0.1, fd00::/8"


@pytest.mark.parametrize("text", ["", "proxy.example", "10.0.0.1/8", "0.0.0.0/0", "10.0.0.1,", "::/0"])
def test_console_proxy_takes_only_limited_addresses(text: str) -> None:
    assert "IP addresses and networks" in refusal(flags={"console_proxy": text, "credentials": "keys.toml"})


@pytest.mark.parametrize(("given", "missing"), [("tls_key", "tls_certificate"), ("tls_certificate", "tls_key")])
def test_certificate_and_key_must_be_set_together(given: str, missing: str) -> None:
    assert refusal(flags={given: "a.pem"}).startswith(f"{missing} (default): must be given with {given}")
    assert getattr(resolve(flags={given: "a.pem", missing: "b.pem"}, environment={}), given) == Path("a.pem")


@pytest.mark.parametrize("value", ["", "\0", 5, "not-utf-8-\udcff"])
def test_a_file_setting_must_be_a_path(value: object) -> None:
    assert "must be the path of a file" in refusal(flags={"credentials": value})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_addresses_need_no_protection(address: str) -> None:
    assert resolve(flags={"host": address}, environment={}).host == address


@pytest.mark.parametrize(("environment", "file", "text"), [
    pytest.param({"VEILMQ_PROT": "1"}, None, "VEILMQ_PROT (environment): unknown setting; did you mean VEILMQ_PORT?",
        id="environment"),
    pytest.param({}, "admin-port = 1", "admin-port (file veilmq.toml): unknown setting; did you mean admin_port?",
        id="file"),
    pytest.param({}, "[server]\nport = 1", "server (file veilmq.toml): unknown setting; the settings are", id="table"),
])  # fmt: skip
def test_an_unknown_setting_is_refused(environment: dict[str, str], file: str | None, text: str) -> None:
    assert refusal(environment=environment, file=file).startswith(text)


@pytest.mark.parametrize(("content", "words"), [
    pytest.param(b"port = ", "is not a TOML file", id="not-toml"),
    pytest.param(b"\xff\xfe", "is not a TOML file", id="not-utf-8"),
    pytest.param(None, "cannot be read: No such file", id="missing"),
])  # fmt: skip
def test_an_unreadable_file_is_refused(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "named.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=words) as caught:
        resolve(flags={}, environment={}, file=path)
    assert str(path) in str(caught.value)
    assert refusal(environment={"VEILMQ_CONFIG": str(path)}) == str(caught.value)


def test_settings_built_by_a_program_are_checked_too() -> None:
    with pytest.raises(SettingError, match=r"^port = '70000': must be a whole number from 0 to 65535$"):
        ServerSettings(port=70_000)
    with pytest.raises(SettingError, match=r"^admin_port = '9324': must differ from port$"):
        ServerSettings(admin_port=9324)
    assert ServerSettings(admin_host="::1", admin_port=9324).port == 9324
    assert ServerSettings(port=0, admin_port=0, metrics_port=0).admin_port == 0
    assert ServerSettings(data=None).data is None


def test_every_setting_has_a_description_and_a_valid_default() -> None:
    for row in SETTINGS:
        assert row.description.endswith("."), row.name
        assert row.holds(row.default), row.name


DATABASE = "postgresql://h/q"


@pytest.mark.parametrize(("flags", "environment", "file", "expected"), [
    pytest.param({"memory": True}, {}, "", None, id="memory by a flag"),
    pytest.param({}, {"VEILMQ_MEMORY": "true"}, "", None, id="memory by the environment"),
    pytest.param({}, {}, "memory = true", None, id="memory by the file"),
    pytest.param({"memory": True}, {"VEILMQ_DATA": "there"}, "", None, id="memory by a flag beats a folder"),
    pytest.param({"data": "here"}, {"VEILMQ_MEMORY": "true"}, "", Path("here"), id="a folder by a flag beats memory"),
    pytest.param({}, {"VEILMQ_MEMORY": "false"}, "memory = true", Path("veilmq-data"), id="no memory by a variable"),
    pytest.param({}, {"VEILMQ_MEMORY": "false", "VEILMQ_DATA": "there"}, "", Path("there"), id="memory is false"),
    pytest.param({"store": DATABASE}, {}, "", DATABASE, id="a database by a flag"),
    pytest.param({}, {"VEILMQ_STORE": "postgres://h/q"}, "", "postgres://h/q", id="a database by the environment"),
    pytest.param({}, {}, f'store = "{DATABASE}"', DATABASE, id="a database by the file"),
    pytest.param({}, {}, 'store = ["postgresql://a", "postgresql://b,c/q"]', "postgresql://a,postgresql://b,c/q",
        id="databases by a list"),
    pytest.param({"store": DATABASE}, {"VEILMQ_DATA": "there"}, "", DATABASE, id="a database by a flag beats a folder"),
    pytest.param({"data": "here"}, {"VEILMQ_STORE": DATABASE}, "", Path("here"), id="a folder by a flag beats a store"),
    pytest.param({"memory": True}, {"VEILMQ_STORE": DATABASE}, "", None, id="memory by a flag beats a database"),
])  # fmt: skip
def test_the_strongest_source_chooses_between_store_memory_and_data(
    flags: dict[str, object], environment: dict[str, str], file: str, expected: Path | str | None
) -> None:
    Path("veilmq.toml").write_text(file, encoding="utf-8")
    settings = resolve(flags=flags, environment=environment)
    assert (settings.store, settings.data) == ((expected, None) if isinstance(expected, str) else (None, expected))


@pytest.mark.parametrize(("flags", "message"), [
    ({"memory": True, "data": "here"}, "data = 'here' (flag --data): memory is given too"),
    ({"store": DATABASE, "memory": True}, "store is given too"),
    ({"store": DATABASE, "data": "here"}, "store is given too"),
], ids=["memory and a folder", "a database and memory", "a database and a folder"])  # fmt: skip
def test_two_of_store_memory_and_data_in_one_source_are_refused(flags: dict[str, object], message: str) -> None:
    assert refusal(flags=flags).endswith(f"{message}; give one of store, data and memory")


def test_durability_can_be_reduced_only_for_databases() -> None:
    flags = {"store": "postgresql://host/db", "durability": "standard"}
    assert resolve(flags=flags, environment={}).durability == "standard"
    text = refusal(flags={"durability": "standard"})
    assert text.endswith("needs store; a data folder always waits for its disk")


def test_store_and_data_in_a_program_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="store is given too"):
        ServerSettings(store="postgresql://h/q", data=tmp_path)


@pytest.mark.parametrize(
    "url",
    ["", "mysql://u:secret@h/q", "postgresql://", "here", "postgresql://u:secret@h/q,mysql://h", "a b", 7, ["a", 7]],
)
def test_an_invalid_database_url_is_refused_without_showing_its_password(url: object) -> None:
    text = refusal(flags={"store": url})
    assert "must be a URL that begins with postgresql://, or several separated by commas" in text
    assert "secret" not in text


LINK = "tcp://10.0.0.1:9324"


@pytest.mark.parametrize("service", ["VEILMQ", "VEILMQ_QUEUES", "VEILMQ_2"])
def test_service_variables_of_kubernetes_are_ignored(service: str) -> None:
    """All variables that Kubernetes sets for a Service with a named port, whose name may have several words."""
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
def test_a_setting_overwritten_by_kubernetes_is_an_error(variable: str, name: str, link: str) -> None:
    """The message states cause and remedy, even if a flag overrides the setting."""
    with pytest.raises(SettingError) as caught:
        resolve(flags={name: "1"}, environment={variable: link})
    assert str(caught.value) == (
        f"{name} = '{link}' (environment variable {variable}): "
        "this is what Kubernetes sets for a Service of that name; "
        "put enableServiceLinks: false into the pod's spec, or rename the Service"
    )


@pytest.mark.parametrize(("variable", "value"), [
    ("VEILMQ_SERVICE", "x"), ("VEILMQ_SERVICE_HOSTS", "10.0.0.1"), ("VEILMQ_PORT_9324", LINK),
    ("VEILMQ_PORT_9324_HTTP", LINK), ("VEILMQ_PORT_9324_TCP_HOST", "10.0.0.1"), ("VEILMQ_PROT", LINK),
    ("VEILMQ_QUEUES_PORT", "9324"), ("VEILMQ_QUEUES_PORT", "tcp://10.0.0.1"),
])  # fmt: skip
def test_variables_similar_to_those_of_kubernetes_are_unknown_settings(variable: str, value: str) -> None:
    """So that a misspelt setting is not ignored."""
    with pytest.raises(SettingError, match=f"^{variable} .*unknown setting"):
        resolve(flags={}, environment={variable: value})


PUBLIC = ["8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.0", "100.63.255.255", "2606:4700::1111", "2a00:1450::1"]
SPECIAL = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.100.100.200", "192.0.0.192", "198.18.0.1", "203.0.113.7", "224.0.0.1", "255.255.255.255",
    "::1", "::", "::7f00:1", "fe80::1", "fec0::1", "fd00:ec2::254", "ff02::1", "64:ff9b::7f00:1", "64:ff9b:1::1",
    "2002:7f00:1::", "2001::1", "2001:db8::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_special(address: str) -> None:
    assert not is_special(ip_address(address))


@pytest.mark.parametrize("address", SPECIAL)
def test_a_special_address_is_allowed_only_by_its_own_network(address: str) -> None:
    """Neither a name that resolves to it nor a network of public addresses allows it."""
    found = ip_address(address)
    wide = AllowList("hook.example, 0.0.0.0/0, ::/0, 0.0.0.0/1, 128.0.0.0/1")
    assert is_special(found)
    assert not wide.allows_address(found, 80, named=True)
    assert not wide.allows_address(found, 80, named=False)
    assert AllowList(address).allows_address(found, 80, named=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
def test_mapped_addresses_are_treated_as_ipv4(address: str) -> None:
    mapped = ip_address(f"::ffff:{address}")
    assert unmapped(mapped) == ip_address(address)
    assert not AllowList("::ffff:0:0/96, ::/0, hook.example").allows_address(mapped, 80, named=True)
    assert AllowList(f"{address}/32").allows_address(mapped, 80, named=False)


def test_a_public_address_is_allowed_by_name_or_by_network() -> None:
    address = ip_address("8.8.8.8")
    assert AllowList("hook.example").allows_address(address, 80, named=True)
    assert not AllowList("hook.example").allows_address(address, 80, named=False)
    assert AllowList("8.8.0.0/16").allows_address(address, 80, named=False)
    assert AllowList("0.0.0.0/0").allows_address(address, 80, named=False)
    assert not AllowList("8.9.0.0/16").allows_address(address, 80, named=False)


def test_names_are_compared_whole_and_with_their_port() -> None:
    allowed = AllowList("Hook.Example, other.example:8080,[fd00::1]:443,10.0.0.0/8:81")
    assert allowed.allows_name("hook.example", 80)
    assert allowed.allows_name("hook.example", 8080)
    assert not allowed.allows_name("evil-hook.example", 80)
    assert not allowed.allows_name("hook.example.evil", 80)
    assert allowed.allows_name("other.example", 8080)
    assert not allowed.allows_name("other.example", 80)
    assert allowed.allows_address(ip_address("fd00::1"), 443, named=False)
    assert not allowed.allows_address(ip_address("fd00::1"), 80, named=False)
    assert allowed.allows_address(ip_address("10.9.9.9"), 81, named=False)
    assert not allowed.allows_address(ip_address("10.9.9.9"), 80, named=False)


def test_empty_allow_lists_and_lists_without_networks() -> None:
    assert not AllowList("")
    assert not AllowList(" , ")
    assert AllowList("a")
    assert AllowList("a, 10.0.0.1").has_networks
    assert not AllowList("a, b:1").has_networks


@pytest.mark.parametrize("text", [
    "*", "*.example", "hook.example/", "http://hook.example", "a b", "10.0.0.1/8", "a:0", "a:65536", "a:b", "1.2.3",
    "[::1", "::1:x",
])  # fmt: skip
def test_an_invalid_allow_list_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        AllowList(f"fine.example, {text}")
