"""The command line application: help, exit codes, one-line errors, completion, profiles and start-up cost."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from tests.cli.conftest import COMMAND, PIPES, Veilmq, command, environment
from tests.cli.every_command import every_command, options
from tests.client.scripted_server import ScriptedServer, reply
from tests.conftest import EVERYTHING
from tests.proofs.forking import IMPORTED, Forked, run
from tests.server.keys import SECRETS, written
from veilmq import __version__
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

COMMANDS = [name for name, _ in every_command()]


def test_the_process_prints_help() -> None:
    result = subprocess.run([*COMMAND, "--help"], env=environment(), timeout=60, check=False, **PIPES)
    assert (result.returncode, result.stderr) == (0, "")
    assert {name.split()[0] for name in COMMANDS} <= set(result.stdout.split())
    assert command().stdout == result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_help(name: str, veilmq: Veilmq) -> None:
    result = veilmq(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: veilmq {name}")
    marks = re.findall("^│ ([* ])  --", result.out, re.MULTILINE)
    assert marks == sorted(marks, reverse=True), "an option that is required is behind others"


def test_version_is_that_of_the_package(veilmq: Veilmq) -> None:
    assert veilmq("--version").out == f"veilmq {__version__}\n"


WRONG: list[tuple[str, str]] = [
    ("nope", 'Unknown command "nope". Available commands: serve, queue'),
    ("queue lst", 'Unknown command "lst". Did you mean "list"?'),
    ("queue list --perfix a", "Unknown option: --perfix. Did you mean --prefix?"),
    ("serve --prot 1", "Unknown option: --prot. Did you mean --port?"),
    ("serve --no-memory", "Unknown option: --no-memory. A switch is off unless it is given."),
    ("queue list --no-json", "Unknown option: --no-json. A switch is off unless it is given."),
    ("queue show", "QUEUE"),
    ("queue show a b", "Unused"),
    ("queue create a --delay 901", "whole number from 0 to 900"),
    ("queue create a --delay soon", "--delay"),
    ("queue create a --delay 1.5", 'Invalid value "1.5" for --delay. Must be a whole number from 0 to 900.'),
    ("send orders hello --delay 1.5", 'Invalid value "1.5" for --delay. Must be a whole number from 0 to 900.'),
    ("receive orders --count 0", 'Invalid value "0" for --count. Must be a whole number from 1 to 10.'),
    ("receive orders --count 11", 'Invalid value "11" for --count. Must be a whole number from 1 to 10.'),
    ("receive orders --wait 21", 'Invalid value "21" for --wait. Must be a whole number from 0 to 20.'),
    ("receive orders --timeout 43201", 'Invalid value "43201" for --timeout. Must be a whole number from 0 to 43200.'),
    ("send orders hello --attribute colour", "--attribute must look like NAME=TEXT, not 'colour'."),
    ("send orders hello --attribute a=1 --attribute a=2", "--attribute names a twice; give it one value."),
    ("send orders hello --attribute =red", "--attribute must look like NAME=TEXT, not '=red'."),
    ("queue create jobs --receives-max 3", "--dead-letter-queue"),
    ("queue create jobs --redrive-source a", "--redrive-permission listed"),
    ("queue create jobs --tag a", "KEY=VALUE"),
    ("queue set orders", "--visibility-timeout 60"),
    ("queue list --endpoint here", "must look like http://127.0.0.1:9324"),
    ("claims list jobs --endpoint here", "must look like http://127.0.0.1:9324"),
    ("serve --port 65536", "port = '65536' (flag --port): must be a whole number from 0 to 65535"),
    ("serve --data a --memory", "give one of store, data and memory"),
    ("serve --host 0.0.0.0", "--insecure"),
    ("serve --tls-key key.pem", "tls_certificate (default): must be given with tls_key"),
    ("serve --config absent.toml", "config = 'absent.toml': cannot be read"),
    ("worker ..shop:app", "names no consumer; write module:name"),
    ("pipeline archive orders --table t --batch 0", "from 1 to 1000000"),
    ("pipeline archive --table t", "QUEUES"),
    ("pipeline route orders --table none.json --checkpoint c", "not a routing table"),
    ("pipeline tune --events e --state s --quantile 1", "less than 0.9999"),
    ("pipeline tune --events e --state s --map-tasks 0", "from 1 to 10000"),
    ("pipeline tune --events e --state s3a://b/s --apply", "--record is required"),
]


@pytest.mark.parametrize(("command", "words"), WRONG, ids=[command for command, _ in WRONG])
def test_a_wrong_command_is_a_usage_error(command: str, words: str, veilmq: Veilmq) -> None:
    """The exit code is 2 and the error is one line; no file is opened and no request sent."""
    result = veilmq(*command.split())
    result.fails(2, words)
    assert result.err.startswith("veilmq: ")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("arguments", [["send", "q"], ["serve", "--data"]], ids=["text", "path"])
def test_an_argument_that_is_not_text_is_a_usage_error(arguments: list[str], veilmq: Veilmq) -> None:
    result = veilmq(*arguments, b"\xff".decode(errors="surrogateescape"))  # how Python decodes such bytes
    result.fails(2, "is not text in the encoding of this locale (")
    assert result.err.startswith("veilmq: The argument '")


def test_arguments_must_be_text_in_the_encoding_of_the_locale() -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words: list[str | bytes] = [*COMMAND, "queue", "create", "été".encode()]
    result = subprocess.run(words, env=environment(**variables), capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, b"")
    assert re.fullmatch(rb"veilmq: The argument '.*is not text in the encoding of this locale \(.*\n", result.stderr)


@pytest.mark.parametrize("words", [["peek", "q"], ["peek", "q", "--json"], ["top", "--once"]], ids=" ".join)
def test_output_is_utf8_in_every_locale(words: list[str], server: RunningServer, client: HttpQueueClient) -> None:
    client.create_queue("q")
    client.send("q", "tée 茶")
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "VEILMQ_ENDPOINT": server.endpoint}
    result = subprocess.run(
        [*COMMAND, *words], env=environment(**variables), capture_output=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert ("tée 茶" if "peek" in words else "–").encode() in result.stdout


def test_the_error_of_an_unreachable_server_explains_how_to_start_one(veilmq: Veilmq) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    result = veilmq("queue", "list", "--endpoint", endpoint)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        f"veilmq: No answer from {endpoint}: connection refused. "
        "Start a server with `veilmq serve`, or name another with --endpoint.\n"
    )


def test_a_reply_that_no_queue_server_sends_is_an_error(veilmq: Veilmq) -> None:
    with ScriptedServer(reply(404, b"<html>\nnot here")) as server:
        result = veilmq("queue", "list", "--endpoint", server.endpoint)
    result.fails(1, "not that of a queue server")
    assert result.err.endswith("with --endpoint; if it is behind a proxy, check that it is ready.\n")


def test_the_endpoint_option_overrides_the_variable(
    server: RunningServer, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert veilmq("queue", "list").code == 0
    monkeypatch.setenv("VEILMQ_ENDPOINT", "http://127.0.0.1:1")
    assert veilmq("queue", "list", "--endpoint", server.endpoint).code == 0


@pytest.mark.parametrize("words", ["queue list", "queue --help", "--version", ""])
def test_a_closed_output_pipe_ends_a_command_silently(
    server: RunningServer, client: HttpQueueClient, words: str
) -> None:
    """`veilmq queue list | head -1` prints no error; the exit code is that of SIGPIPE."""
    client.create_queue("orders")
    result = into_closed_pipes(words.split(), "stdout", VEILMQ_ENDPOINT=server.endpoint)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_closed_error_pipe_leaves_the_exit_code() -> None:
    assert into_closed_pipes(["nope"], "stdout", "stderr").returncode == 2


def into_closed_pipes(words: list[str], *streams: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        outputs = PIPES | dict.fromkeys(streams, pipe)
        return run([*COMMAND, *words], env=environment(**variables), timeout=60, **outputs)


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [["queue", "list", "--json"], ["queue", "--help"]], ids=["result", "help"])
def test_a_full_output_device_is_a_one_line_error(server: RunningServer, words: list[str], unbuffered: str) -> None:
    variables = environment(VEILMQ_ENDPOINT=server.endpoint, PYTHONUNBUFFERED=unbuffered)
    with Path("/dev/full").open("wb") as full:
        streams = PIPES | {"stdout": full}
        result = subprocess.run([*COMMAND, *words], env=variables, timeout=60, check=False, **streams)
    error = "veilmq: The output cannot be written: No space left on device.\n"
    assert (result.returncode, result.stderr) == (1, error)


def test_an_interrupt_is_quiet(server: RunningServer, client: HttpQueueClient) -> None:
    client.create_queue("orders")
    words = [*COMMAND, "receive", "orders", "--wait", "20", "--endpoint", server.endpoint]
    with Forked(words, env=environment(), **PIPES) as process:
        server.wait_until(lambda: server.parked or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


# Invalid numbers: every option refuses them with one line.


NO_NUMBERS = ("abc", "", "1.5.5", "nan", "-1", "1e400", "9" * 30, "0x10")


def _is_number(argument: Any) -> bool:
    return argument.hint in (int, float, int | None)


def _line(app: App, argument: Any, value: str) -> list[str]:
    """Return the required arguments of a command, and ``value`` for ``argument``."""
    words = []
    for each in app.assemble_argument_collection():
        given = value if each is argument or each.names == argument.names else "1"
        if each.show and (each.required or each.names == argument.names):
            option = next((name for name in each.names if name.startswith("--")), None)
            words.append(f"{option}={given}" if option else given)
    return words


NUMBERS = [
    (name, app, argument)
    for name, app in every_command()
    for argument in app.assemble_argument_collection()
    if argument.show and _is_number(argument)
]
IDS = [f"{name} {argument.names[0]}" for name, _, argument in NUMBERS]
FEW = 3
"""How many values `make test` gives each option; the options of one type take turns, so that all values are tested."""


def _round_robin() -> Iterator[Any]:
    used = Counter[Any]()
    for each, option in zip(IDS, NUMBERS, strict=True):
        kind = option[2].hint
        few = {(used[kind] + place) % len(NO_NUMBERS) for place in range(FEW)}
        used[kind] += FEW
        others = set(range(len(NO_NUMBERS))) - few
        yield pytest.param(*option, [NO_NUMBERS[place] for place in sorted(few)], id=each)
        yield pytest.param(*option, [NO_NUMBERS[place] for place in sorted(others)], id=f"{each} ...", marks=EVERYTHING)


OPTIONS = list(_round_robin())


@pytest.mark.parametrize(("name", "app", "argument", "values"), OPTIONS)
def test_an_invalid_number_is_refused_with_the_valid_range(
    name: str, app: App, argument: Any, values: list[str], veilmq: Veilmq
) -> None:
    place = argument.names[0]
    for value in values:
        where = f" for {place}" if place.startswith("--") else ""
        result = veilmq(*name.split(), *_line(app, argument, value))
        result.fails(2, f'veilmq: Invalid value "{value}"{where}. Must be a ')


def test_the_invalid_numbers_cover_every_type_of_option() -> None:
    found = {"queue create --delay", "pipeline tune --quantile", "worker --metrics-port", "claims release NUMBER"}
    assert found <= set(IDS)
    for kind in {argument.hint for _, _, argument in NUMBERS}:
        given = [each.values[3] for each in OPTIONS if each.values[2].hint == kind and not each.marks]
        assert {value for values in given for value in values} == set(NO_NUMBERS), kind


@pytest.mark.parametrize("command", ["serve", "doctor", "migrate"])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host:abc/q",
        "postgresql://host:99999/q",
        "postgresql://host:0/q",
        "postgresql://[::1/q",
        "postgresql://one:1,two:b/q",
        "postgresql://host/q?port=abc",
        "postgresql://host/q?port=1%2Fa",
        "postgresql://x[::1]/q",
    ],
)
def test_an_invalid_port_in_the_url_of_a_database_is_a_usage_error(command: str, url: str, veilmq: Veilmq) -> None:
    """The error names the setting and its source; the driver's own error has neither."""
    result = veilmq(command, "--store", url)
    result.fails(2, f"veilmq: store = '{url}' (flag --store): must be a URL that begins with postgresql://")
    assert result.err.endswith("each port from 1 to 65535\n")


def test_the_error_of_an_endpoint_names_its_source(veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "VEILMQ_ENDPOINT"):  # in ascending precedence
        monkeypatch.setenv(variable, f"here:{variable}")
        assert veilmq("queue", "list").err.startswith(f"veilmq: {variable}: 'here:{variable}' is not an endpoint")
    monkeypatch.setenv("VEILMQ_ENDPOINT", "")  # an empty variable is ignored
    assert veilmq("queue", "list").err.startswith("veilmq: AWS_ENDPOINT_URL_SQS: ")
    assert veilmq("queue", "list", "--endpoint", "there").err.startswith("veilmq: --endpoint: 'there' is not")


# `veilmq pipeline` and `veilmq demo`: missing extras, missing Java and usage errors.


WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; from veilmq.cli import main; sys.exit(main(sys.argv[1:]))"


def without(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `veilmq` as if `module` were not installed; a module that a fork has imported needs a new process."""
    command = [sys.executable, "-c", WITHOUT, module, *words]
    if module not in IMPORTED:
        return run(command, env=environment(), timeout=60, **PIPES)
    return subprocess.run(command, env=environment(), timeout=60, check=False, **PIPES)


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("pyspark", "pipeline report --state s --to r.html", "spark"),
        ("pyspark", "demo", "spark"),
        ("apsw", "demo", "server"),
    ],
)
def test_the_error_of_a_missing_extra_names_it(module: str, command: str, extra: str) -> None:
    done = without(module, *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"pip install 'veilmq[{extra}]'" in done.stderr


@pytest.mark.parametrize("module", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http.trace_exporter"])
def test_a_worker_without_the_exporter_names_the_extra(module: str, tmp_path: Path) -> None:
    text = "from veilmq.consumer import Consumer\napp = Consumer('q')\n@app.handler\n"
    (tmp_path / "shop.py").write_text(f"{text}async def handle(body: str) -> None: ...\n")
    done = without(module, "worker", "shop:app", "--opentelemetry")
    error = "veilmq: opentelemetry=True needs pip install 'veilmq[otlp]'.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)


@pytest.mark.parametrize("command", ["demo", "pipeline report --state s --to r.html"])
def test_missing_java_is_a_one_line_error(
    veilmq: Veilmq, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    veilmq(*command.split()).fails(1, "Java 17 or newer", "install")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("queue", "options", "code", "error"),
    [({}, "", 1, "names no queue"), ({"queue": "orders-x"}, "--conf spark.x", 2, "must look like NAME=VALUE")],
    ids=["a table without queues", "an invalid option"],
)
def test_route_with_an_error_creates_no_queues(
    veilmq: Veilmq, client: HttpQueueClient, queue: dict[str, str], options: str, code: int, error: str
) -> None:
    client.create_queue("orders")
    classes = [{"name": "x", "visibility_timeout_s": 1} | queue]
    Path("table.json").write_text(json.dumps({"version": 1, "default": 0, "classes": classes}))
    words = f"pipeline route orders --table table.json --checkpoint c --create {options}"
    veilmq(*words.split()).fails(code, error)
    assert client.list_queues() == ["orders"]


@pytest.mark.parametrize(
    ("options", "words"),
    [("--master local --remote sc://x", "give only one of them"), ("--conf spark.x", "must look like NAME=VALUE")],
)
def test_invalid_options_of_a_spark_session_are_a_usage_error(
    veilmq: Veilmq, client: HttpQueueClient, options: str, words: str
) -> None:
    client.create_queue("orders")  # checked before the session
    veilmq(*f"pipeline archive orders --table t {options}".split()).fails(2, words)


# A command imports only the modules that it needs.


HEAVY = {"asyncio", "rich", "apsw", "botocore", "configparser", "pyspark", "tomllib", "uvloop", "wsgiref"}
HEAVY |= {f"veilmq.{package}" for package in ("server", "store", "consumer", "pipeline", "testing")}
LOADED = "import sys; from veilmq.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("queue list", set()),
        ("send orders hello", set()),
        ("receive orders", set()),
        ("peek orders", set()),
        ("--help", {"rich"}),
        ("pipeline tune --help", {"rich", "veilmq.pipeline"}),
    ],
)
def test_a_command_imports_only_the_modules_that_it_needs(
    command: str, allowed: set[str], server: RunningServer, client: HttpQueueClient
) -> None:
    client.create_queue("orders")
    words = [sys.executable, "-c", LOADED, *command.split()]
    variables = environment(VEILMQ_ENDPOINT=server.endpoint)
    done = subprocess.run(words, env=variables, timeout=60, check=True, **PIPES)
    loaded = set(done.stderr.split())
    assert "cyclopts" in loaded
    assert loaded & HEAVY == allowed
    assert ("urllib3" in loaded) == (command != "--help")


def test_neither_a_command_on_a_store_nor_a_server_imports_a_client(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path / "store"):
        pass
    program = f"{LOADED}; import veilmq.server.app; print(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", program, "doctor", "--data", str(tmp_path / "store")]
    done = subprocess.run(words, env=environment(), timeout=60, check=True, **PIPES)
    assert done.stdout.endswith("Every check is ok.\n")
    loaded = set(done.stderr.split())
    assert "veilmq.server.app" in loaded
    assert loaded.isdisjoint({"urllib3", "veilmq.client"})


# Completion, `--json`, and profiles of AWS's tools.


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_a_shell(shell: str, veilmq: Veilmq, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    result = veilmq("--install-completion", "--shell", shell, "--output", str(script))
    assert (result.code, result.out) == (0, f"Installed {script}; start a new shell to use it.\n")
    text = script.read_text(encoding="utf-8")
    for word in ("cancel-redrive", "visibility-timeout", "peek", "stdin-lines"):
        assert word in text


def test_bash_completes_the_values_of_an_option(veilmq: Veilmq, tmp_path: Path) -> None:
    """It omits the value '', which stands for the server's setting."""
    script = tmp_path / "completion"
    assert veilmq("--install-completion", "--shell", "bash", "--output", str(script)).code == 0
    typed = "COMP_WORDS=(veilmq queue create --event-log ''); COMP_CWORD=4"
    program = f"source {script}; {typed}; _veilmq; printf '<%s>' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "<off><closed>"


def test_completion_is_installed_in_the_folder_of_the_shell(
    veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert veilmq("--install-completion", "--shell", "bash").code == 0
    script = tmp_path / ".local/share/bash-completion/completions/veilmq"
    syntax = subprocess.run(["bash", "-n", script], capture_output=True, timeout=60, check=False)
    assert (syntax.returncode, syntax.stderr) == (0, b"")
    assert str(script) in (tmp_path / ".bashrc").read_text(encoding="utf-8")
    veilmq("--install-completion", "--shell", "bash", "--output", "/dev/null/x").fails(1, "cannot be written")
    result = veilmq("--install-completion", "--shell", "zsh", "--output", str(tmp_path / "completion"), "--json")
    assert (result.code, json.loads(result.out)) == (0, {"path": str(tmp_path / "completion")})
    for name in ("ZSH_VERSION", "BASH_VERSION", "FISH_VERSION", "SHELL", "PSModulePath"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # without ps
    veilmq("--install-completion").fails(2, "Name the shell with --shell.")


def test_every_command_but_the_worker_has_a_json_option() -> None:
    assert {name for name, app in every_command() if "--json" not in options(app)} == {"worker"}


PROFILES = """
[default]
region = eu-west-1

[profile local]
services = here
endpoint_url = http://127.0.0.1:2
[services here]
sqs =
    endpoint_url = http://127.0.0.1:1
s3 =
    endpoint_url = http://127.0.0.1:3

[profile plain]
endpoint_url = http://127.0.0.1:2

[profile 'two words']
endpoint_url = http://127.0.0.1:5

[profile wrong]
endpoint_url = here
"""
SECRETS_FILE = f"""
[local]
aws_access_key_id = AKIDFRIEND
aws_secret_access_key = {SECRETS["AKIDFRIEND"]}
"""


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    config.write_text(PROFILES, encoding="utf-8")
    credentials.write_text(SECRETS_FILE, encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setattr("veilmq.client.transport.DEFAULT_ENDPOINT", "http://127.0.0.1:6")  # without a server
    return config


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_PROFILE": "local"}, "No answer from http://127.0.0.1:1:"),
        ({"AWS_DEFAULT_PROFILE": "plain"}, "No answer from http://127.0.0.1:2:"),
        ({"AWS_PROFILE": "local", "AWS_ENDPOINT_URL": "http://127.0.0.1:4"}, "No answer from http://127.0.0.1:4:"),
        ({"AWS_PROFILE": "local", "VEILMQ_ENDPOINT": ""}, "No answer from http://127.0.0.1:1:"),
        ({"AWS_PROFILE": "two words"}, "No answer from http://127.0.0.1:5:"),
        ({"AWS_CONFIG_FILE": "~nobody-here/config"}, "No answer from http://127.0.0.1:6:"),
        ({"AWS_CONFIG_FILE": "x" * 300}, "No answer from http://127.0.0.1:6:"),
        ({"AWS_PROFILE": "wrong"}, "endpoint_url of the profile: 'here' is not an endpoint"),
        ({"AWS_PROFILE": "nope"}, "AWS_PROFILE: there is no profile 'nope' in"),
        ({"AWS_PROFILE": "default", "AWS_CONFIG_FILE": "conftest.py"}, "conftest.py cannot be read"),
    ],
)
def test_a_profile_names_the_endpoint(
    variables: dict[str, str], words: str, profiles: Path, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint of SQS has precedence over that of all services, and a variable over both."""
    (profiles.parent / "conftest.py").write_text("import no\nprofile\n", encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = veilmq("queue", "list")
    assert (result.code, result.out) == (1 if words.startswith("No answer") else 2, "")
    assert words in result.err


def test_a_variable_disables_the_endpoints_of_profiles(
    profiles: Path, veilmq: Veilmq, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VEILMQ_ENDPOINT")
    monkeypatch.setenv("AWS_PROFILE", "local")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert "No answer from http://127.0.0.1:6:" in veilmq("queue", "list").err
    assert veilmq("queue", "list", "--endpoint", server.endpoint).code == 0


def test_a_profile_contains_the_signing_key(
    profiles: Path, veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in the variables replaces it, even if that key is unknown."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region="eu-west-1") as server:
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        assert veilmq("queue", "list", "--endpoint", server.endpoint).code == 1
        monkeypatch.setenv("AWS_PROFILE", "local")
        assert veilmq("queue", "list", "--endpoint", server.endpoint).code == 0
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNOBODY")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        veilmq("queue", "list", "--endpoint", server.endpoint).fails(1, "UnrecognizedClientException")


def test_closed_standard_streams_are_treated_as_empty(server: RunningServer, client: HttpQueueClient) -> None:
    client.create_queue("a")
    shell, variables = 'exec "$@" <&- >&- 2>&-', environment(VEILMQ_ENDPOINT=server.endpoint)
    for words, code in ((["queue", "list"], 0), (["queue", "purge", "a"], 2), (["send", "a", "--stdin-lines"], 0)):
        started = ["sh", "-c", shell, "sh", *COMMAND, *words]
        assert subprocess.run(started, env=variables, timeout=60, check=False).returncode == code
