"""The guard: which address is connected to for a URL, and why there is none."""

import asyncio

import pytest

from veilmq.core.topic_errors import EndpointRefused
from veilmq.server.pushes import Guard, SystemResolver, Target
from veilmq.server.setting_kinds import AllowList


class Names:
    """A name service that answers as told, and counts."""

    def __init__(self, **answers: list[str]) -> None:
        self.asked: list[tuple[str, int]] = []
        self._answers = answers

    async def __call__(self, name: str, port: int) -> list[str]:
        self.asked.append((name, port))
        if name not in self._answers:
            raise OSError(-2, "Name or service not known")
        return self._answers[name]


def admitted(url: str, allow: str, names: Names | None = None) -> Target:
    """Return what a guard says."""
    return asyncio.run(Guard(AllowList(allow), resolve=names or Names()).admit(url))


def admit(url: str, allow: str, names: Names | None = None) -> list[str]:
    """Return the addresses that a guard lets be connected to."""
    return [str(address) for address in admitted(url, allow, names).addresses]


def refusal(url: str, allow: str, names: Names | None = None) -> str:
    """Return why a guard says no."""
    with pytest.raises(EndpointRefused) as caught:
        admit(url, allow, names)
    return str(caught.value)


def test_a_name_leads_to_the_address_that_was_looked_at() -> None:
    target = admitted("http://hook/in", "hook", Names(hook=["8.8.8.8"]))
    assert ([str(each) for each in target.addresses], target.url.host, target.url.path) == (["8.8.8.8"], "hook", "/in")


def test_of_several_addresses_those_that_are_allowed_may_be_tried() -> None:
    names = Names(hook=["2606:4700::1111", "10.0.0.1", "8.8.8.8"])
    assert admit("http://hook/in", "hook", names) == ["2606:4700::1111", "8.8.8.8"]


def test_without_a_list_nothing_is_allowed_and_no_name_asked_for() -> None:
    names = Names(hook=["8.8.8.8"])
    assert "no host is allowed; add it to the server's setting push_allow" in refusal("http://hook/", "", names)
    assert "hook port 80 is not allowed; add it" in refusal("http://hook/", "other", names)
    assert names.asked == []


def test_a_name_that_is_allowed_leads_nowhere_but_to_the_public() -> None:
    told = refusal("http://hook/", "hook", Names(hook=["127.0.0.1", "10.1.1.1"]))
    assert "hook leads to 127.0.0.1, 10.1.1.1, which is no public address" in told
    assert "push_allow" in told
    assert admit("http://hook/", "hook,10.0.0.0/8", Names(hook=["127.0.0.1", "10.1.1.1"])) == ["10.1.1.1"]


def test_an_address_is_allowed_by_its_network_whatever_its_name() -> None:
    assert admit("http://inside/", "10.0.0.0/8", Names(inside=["10.1.1.1"])) == ["10.1.1.1"]
    assert "not allowed" in refusal("http://inside/", "10.0.0.0/8", Names(inside=["11.1.1.1"]))


def test_an_address_in_a_url_is_looked_at_itself() -> None:
    names = Names()
    assert admit("http://127.0.0.1:81/", "127.0.0.1:81", names) == ["127.0.0.1"]
    assert "127.0.0.1 port 80 is not allowed" in refusal("http://127.0.0.1/", "127.0.0.1:81", names)
    assert "not allowed" in refusal("http://[::ffff:169.254.169.254]/", "0.0.0.0/0, ::/0", names)
    assert admit("http://[::ffff:10.0.0.1]/", "10.0.0.1", names) == ["10.0.0.1"]
    assert names.asked == []


def test_a_name_is_resolved_once_for_each_push() -> None:
    """What its owner makes of it a moment later is not asked."""
    names = Names(hook=["8.8.8.8"])
    admit("http://hook:8080/", "hook", names)
    assert names.asked == [("hook", 8080)]


def test_a_name_that_is_not_known_is_told() -> None:
    assert "the name hook cannot be resolved (Name or service not known)" in refusal("http://hook/", "hook")


def test_what_is_no_url_is_refused_before_anything_else() -> None:
    assert "four decimal numbers" in refusal("http://2130706433/", "2130706433.example, 127.0.0.1")


def test_the_system_knows_its_own_name() -> None:
    assert set(asyncio.run(SystemResolver()("localhost", 80))) & {"127.0.0.1", "::1"}


def test_who_asks_for_a_name_that_is_being_looked_up_waits_with_the_others() -> None:
    """A dead name has one thread, however often it is asked for."""

    async def several() -> list[list[str]]:
        resolver = SystemResolver()
        asked = [asyncio.ensure_future(resolver("localhost", 80)) for _ in range(200)]
        return await asyncio.gather(*asked)

    first, *others = asyncio.run(several())
    assert all(other is first for other in others)


def test_the_system_is_asked_for_so_many_names_at_once_and_no_more() -> None:
    async def many() -> list[object]:
        resolver = SystemResolver()
        asked = [asyncio.ensure_future(resolver("localhost", port)) for port in range(1, 81)]
        return await asyncio.gather(*asked, return_exceptions=True)

    refused = [each for each in asyncio.run(many()) if isinstance(each, OSError)]
    assert len(refused) == 16
    assert "too many names" in str(refused[0])


def test_the_system_does_not_know_what_is_no_name() -> None:
    with pytest.raises(OSError, match=r".*"):
        asyncio.run(SystemResolver()("a" * 64 + ".invalid", 80))
