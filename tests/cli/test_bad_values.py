"""Values that nobody can mean: every command answers them with one line, and does nothing."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from cyclopts import App

from tests.cli.conftest import Veilmq
from tests.cli.every_command import every_command
from tests.conftest import EVERYTHING

NO_NUMBERS = ("abc", "", "1.5.5", "nan", "-1", "1e400", "9" * 30, "0x10")
"""What no option for a number takes."""


def _is_number(argument: Any) -> bool:
    return argument.hint in (int, float, int | None)


def _line(app: App, argument: Any, value: str) -> list[str]:
    """Return the words of a command: all that it needs, and ``value`` for ``argument``."""
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
    if _is_number(argument)
]
IDS = [f"{name} {argument.names[0]}" for name, _, argument in NUMBERS]
FEW = 3
"""Of those, how many each option is given in a commit: by turns, so that numbers of each kind have all."""


def _by_turns() -> Iterator[Any]:
    """Yield each option with its few values, and again with the others."""
    turns = Counter[Any]()
    for each, option in zip(IDS, NUMBERS, strict=True):
        kind = option[2].hint
        few = {(turns[kind] + place) % len(NO_NUMBERS) for place in range(FEW)}
        turns[kind] += FEW
        others = set(range(len(NO_NUMBERS))) - few
        yield pytest.param(*option, [NO_NUMBERS[place] for place in sorted(few)], id=each)
        yield pytest.param(*option, [NO_NUMBERS[place] for place in sorted(others)], id=f"{each} ...", marks=EVERYTHING)


OPTIONS = list(_by_turns())


@pytest.mark.parametrize(("name", "app", "argument", "values"), OPTIONS)
def test_what_is_no_number_is_refused_with_the_range(
    name: str, app: App, argument: Any, values: list[str], veilmq: Veilmq
) -> None:
    """Of whatever option of whatever command: its name, the value, and both ends."""
    place = argument.names[0]
    for value in values:
        answer = veilmq(*name.split(), *_line(app, argument, value))
        where = f" for {place}" if place.startswith("--") else ""
        assert (answer.code, answer.out) == (2, ""), value
        assert answer.err.startswith(f'veilmq: Invalid value "{value}"{where}. Must be a '), answer.err
        assert answer.err.count("\n") == 1


def test_there_are_such_options() -> None:
    """The walk finds whole numbers, shares, and the one that is no option; each kind is given all values."""
    found = {"queue create --delay", "pipeline tune --quantile", "worker --metrics-port", "claims release NUMBER"}
    assert found <= set(IDS)
    for kind in {argument.hint for _, _, argument in NUMBERS}:
        given = [each.values[3] for each in OPTIONS if each.values[2].hint == kind and not each.marks]
        assert {value for values in given for value in values} == set(NO_NUMBERS), kind


@pytest.mark.parametrize("command", [["queue", "create", "orders", "--delay"], ["send", "orders", "hello", "--delay"]])
def test_a_part_of_a_second_is_not_rounded(command: list[str], veilmq: Veilmq) -> None:
    """1.5 was taken for 2."""
    answer = veilmq(*command, "1.5")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == 'veilmq: Invalid value "1.5" for --delay. Must be a whole number from 0 to 900.\n'


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
    ],
)
def test_a_port_that_is_none_in_the_url_of_a_database(command: str, url: str, veilmq: Veilmq) -> None:
    """The setting is named, and where it came from: the driver knows neither, and speaks of its own code."""
    answer = veilmq(command, "--store", url)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(
        f"veilmq: store = '{url}' (flag --store): must be a URL that begins with postgresql://"
    )
    assert answer.err.endswith("each port from 1 to 65535\n")


def test_an_endpoint_of_the_environment_is_said_to_be_from_there(
    veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gave no option looks for none."""
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "VEILMQ_ENDPOINT"):  # each beats those before it
        monkeypatch.setenv(variable, f"here:{variable}")
        assert veilmq("queue", "list").err.startswith(f"veilmq: {variable}: 'here:{variable}' is not an endpoint")
    monkeypatch.setenv("VEILMQ_ENDPOINT", "")  # empty, it names none
    assert veilmq("queue", "list").err.startswith("veilmq: AWS_ENDPOINT_URL_SQS: ")
    assert veilmq("queue", "list", "--endpoint", "there").err.startswith("veilmq: --endpoint: 'there' is not")


def test_a_module_has_no_dots_before_it(veilmq: Veilmq) -> None:
    """A relative name has nothing that it could be relative to."""
    answer = veilmq("worker", "..shop:app")
    assert answer.code == 2
    assert "names no consumer; write module:name" in answer.err
