"""Before it prints words a seed says how far they reach."""

from __future__ import annotations

import pytest

from peers.build.joining import invitations
from swarm.settings.config import Listen

HOME, OUTSIDE, BOTH = "192.168.1.5", "93.184.216.34", "100.64.0.9"
ANYWHERE = Listen()


def said(*hosts: str, listen: Listen = ANYWHERE, dialled: bool | None = None, other: str = "") -> str:
    addresses = [f"/ip4/{host}/tcp/4000/p2p/me" for host in hosts]
    addresses += [f"/ip4/{other}/tcp/4000/p2p/other"] if other else []
    return invitations.reach(addresses, "me", listen, 4000, dialled)


def test_private_addresses_are_named_with_what_to_do() -> None:
    for host in (HOME, "10.0.0.3", "172.16.9.9", BOTH, "169.254.1.1"):
        text = said(host)
        assert f"{host} is an address of a private network" in text
        assert "TCP port 4000" in text and "peer.listen.announce" in text and "public address" in text
    assert f"{HOME} and 10.0.0.3 are addresses of a private network" in said(HOME, "10.0.0.3")


def test_a_public_address_that_others_could_not_dial_is_told() -> None:
    assert "others cannot dial this machine" in said(OUTSIDE, dialled=False)
    assert said(OUTSIDE, dialled=True) == said(OUTSIDE, dialled=None) == ""


@pytest.mark.parametrize("dialled", [None, True, False])
def test_words_that_name_another_member_in_public_reach_everybody(dialled: bool | None) -> None:
    assert said(HOME, dialled=dialled, other=OUTSIDE) == ""
    assert said(HOME, dialled=dialled, other="192.168.1.6") != ""


def test_nothing_is_said_of_names_and_of_a_run_on_one_machine() -> None:
    assert said("seed.example.org") == ""
    assert said(HOME, listen=Listen(host="127.0.0.1")) == ""
    assert said() == ""
