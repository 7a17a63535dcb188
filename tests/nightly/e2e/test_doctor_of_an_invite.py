"""`swarm doctor WORD` beside a real seed: what it says of the run, and of the way to it."""

import json
import subprocess
import time
from pathlib import Path

from home_networks import internet
from swarm_processes import LIMIT, ROOT, SETTINGS, command, environment, started_swarm

from swarm.membership import invite
from swarm.protocol import Role

ANYWHERE = SETTINGS.replace('host = "127.0.0.1"', 'host = "0.0.0.0"')


def told(words: list[str]) -> tuple[int, dict[str, list[dict[str, str]]]]:
    ran = subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(ran.stdout or ran.stderr)["findings"]:
        found.setdefault(one["check"], []).append(one)
    return ran.returncode, found


def test_from_a_home_it_tells_addresses_port_nat_relay_and_what_fits(tmp_path: Path) -> None:
    with internet() as net, started_swarm(tmp_path, ANYWHERE) as house:
        outside, home = net.machine(), net.home()
        house.seed("run.private=true", wrap=outside.inside)
        asked = command("doctor", "--json", "--folder", str(tmp_path / "doctor"))
        code, found = told([*home.inside, *asked, house.invite("sampler")])
        levels = {check: {one["level"] for one in all_} for check, all_ in found.items()}
        assert code == 0, found
        (address,) = [one for one in found["address"] if one["level"] == "ok"]
        assert address["found"].startswith(f"{outside.address} port")
        assert levels["clock"] == levels["run"] == levels["nat"] == levels["relay"] == {"ok"}
        assert "the invite admits a sampler" in found["run"][0]["found"]
        assert f"seen as {home.outside}; it keeps the port" in found["nat"][0]["found"]
        assert levels["port"] == {"warn"} and "timed out" in found["port"][0]["found"]
        assert "forward TCP port" in found["port"][0]["todo"]
        assert any(one["found"].startswith("sampler") for one in found["model"]), "which role fits"

        said = invite.read(house.invite("sampler"), time.time())
        unsigned = invite.make(said.run, said.addresses, Role.SAMPLER)
        code, found = told([*home.inside, *asked, unsigned])
        assert code == 5 and found["run"][0]["level"] == "fail", found
