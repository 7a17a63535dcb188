"""deploy/ fits the program: its files parse, their commands and settings are ours, ports agree, alerts ask
for metrics that there are."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

from dashboard.fold.state import SwarmState
from dashboard.serve.feed import Feed
from dashboard.serve.metrics import exposition
from lab.rows.installed import PROJECT
from peers import cli
from peers.commands.parsing import arguments, options
from swarm.settings.config import Config

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
ITEMS: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["items"]
PODS = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in ITEMS if one["kind"] != "Service"}
PROMETHEUS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
UNIT = (DEPLOY / "swarm@.service").read_text()
SCRIPT = (DEPLOY / "swarm.sbatch").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def settings(words: Sequence[str]) -> Config:
    """Of a command line: it is understood, and so are its settings."""
    args = cli.parser().parse_args(words)
    return arguments.load(args, getattr(args, "config", None)).config


def lines() -> Iterator[tuple[str, list[str]]]:
    for name in ("seed", "learner", "sampler"):
        yield f"compose {name}", list(map(str, SERVICES[name]["command"]))
        yield f"kubernetes {name}", PODS[name]["containers"][0]["args"]
    yield "unit", shlex.split(of_unit()["ExecStart"].replace("$OPTIONS", "--as sampler"))[1:]
    (line,) = re.findall(r"^exec swarm (.*)$", SCRIPT, re.MULTILINE)
    yield "slurm", shlex.split(line.replace("${SWARM_ROLE:-auto}", "auto"))


def of_unit() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT)
    return unit["Service"]


@pytest.mark.parametrize(
    ("where", "words"), list(lines()), ids=lambda each: each if isinstance(each, str) else ""
)
def test_every_command_is_understood_with_its_settings(where: str, words: list[str]) -> None:
    assert settings(words), where
    assert "/run" in " ".join(words), "its folder is where state is kept"


@pytest.mark.parametrize("words", [words for where, words in lines() if "seed" in where])
def test_the_seed_is_where_ports_and_names_say(words: list[str]) -> None:
    peer = settings(words).peer
    ports = {peer.listen.port, peer.page.port}
    assert peer.page.host == "0.0.0.0" and not peer.page.free
    assert peer.listen.announce == (f"/dns4/seed/tcp/{peer.listen.port}",)
    published = [text.split(":") for text in SERVICES["seed"]["ports"]]
    assert {int(parts[-1]) for parts in published} == ports
    assert [parts[0] for parts in published if int(parts[-1]) == peer.page.port] == ["127.0.0.1"]
    (service,) = [one for one in ITEMS if one["kind"] == "Service"]
    assert {each["port"] for each in service["spec"]["ports"]} == ports
    assert {each["containerPort"] for each in PODS["seed"]["containers"][0]["ports"]} == ports
    assert set(map(int, re.findall(r"^EXPOSE (\d+) (\d+)$", DOCKERFILE, re.MULTILINE)[0])) == ports
    (target,) = PROMETHEUS["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in SERVICES and host in peer.page.hosts and int(port) == peer.page.port


def test_files_and_volumes_that_compose_mounts_are_there() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"], (
                name,
                volume,
            )
        for other in service.get("depends_on", {}):
            assert other in SERVICES
    build = SERVICES["seed"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]).is_file()


def test_those_who_join_see_words_and_no_key_of_the_seed() -> None:
    for name in ("learner", "sampler"):
        assert not [volume for volume in SERVICES[name]["volumes"] if volume.startswith("seed:")]
    assert SERVICES["words"]["network_mode"] == "none"


def test_grafana_finds_prometheus_and_the_board() -> None:
    datasource = yaml.safe_load((DEPLOY / "grafana/datasource.yml").read_text())["datasources"][0]
    assert datasource["url"] == "http://prometheus:9090" and datasource["isDefault"]
    board = yaml.safe_load((DEPLOY / "grafana/boards.yml").read_text())["providers"][0]["options"]["path"]
    mounted = [volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"]]
    assert ["../dashboard/grafana.json", f"{board}/grafana.json"] in mounted
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{board}/grafana.json"


def test_prometheus_reads_the_alerts_where_they_are_mounted() -> None:
    inside = [volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]]
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    for name in ("prometheus.yml", *PROMETHEUS["rule_files"]):
        assert f"/etc/prometheus/{name}" in inside and (DEPLOY / name).is_file()


def test_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    told = exposition(Feed(SwarmState()).moment(time.time()), 0).decode()
    metrics = set(re.findall(r"^# TYPE (\w+)", told, re.MULTILINE))
    ours = {name for rule in ALERTS for name in re.findall(r"\bswarm_\w+", rule["expr"])}
    assert ours and {name.removesuffix("_bucket") for name in ours} <= metrics
    levels = set(re.findall(r'swarm_problems\{level="(\w+)"\}', told))
    assert {level for rule in ALERTS for level in re.findall(r'level="(\w+)"', rule["expr"])} <= levels
    jobs = {one["job_name"] for one in PROMETHEUS["scrape_configs"]}
    assert {job for rule in ALERTS for job in re.findall(r'job="(\w+)"', rule["expr"])} <= jobs
    assert all({"summary", "description"} == set(rule["annotations"]) for rule in ALERTS)


def test_nobody_is_root_and_what_is_kept_is_in_a_volume() -> None:
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert f"--uid {user} --home-dir /state" in DOCKERFILE and "\nVOLUME /state\n" in DOCKERFILE
    for name, pod in PODS.items():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == int(user), (
            name
        )
        mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts == {"/state", "/tmp"}
    assert of_unit()["DynamicUser"] == "yes"


def test_the_image_has_extras_and_files_that_there_are() -> None:
    for extras in re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    kept = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert all((ROOT / name).exists() for name in kept)
    assert {"LICENSE", "README.md", "configs", "dashboard", "peers", "pyproject.toml", "swarm"} <= set(kept)


def test_pods_get_their_words_from_one_secret() -> None:
    for role in ("learner", "sampler"):
        (word,) = PODS[role]["containers"][0]["env"]
        assert word["valueFrom"]["secretKeyRef"] == {"name": "words", "key": role}
        assert word["name"] == options.WORD


@pytest.mark.parametrize(
    ("where", "words"), [each for each in lines() if "join" in each[1]], ids=lambda each: str(each)[:20]
)
def test_no_command_line_has_an_invite(where: str, words: list[str]) -> None:
    args = cli.parser().parse_args(words)
    assert args.invite == [], f"every user of a machine may read the command lines of {where}"
    assert args.word_file is not None or where.split()[0] in ("kubernetes", "slurm")


def test_the_unit_reads_its_invite_from_a_credential() -> None:
    name, _, path = of_unit()["LoadCredential"].partition(":")
    assert f"--word-file ${{CREDENTIALS_DIRECTORY}}/{name} " in of_unit()["ExecStart"]
    assert f"install -D -m 0600 /dev/null {path.replace('%i', 'my-run')} " in UNIT


def test_the_unit_restarts_after_a_bug_alone_and_lets_the_peer_leave() -> None:
    unit = of_unit()
    assert (unit["Restart"], unit["RestartForceExitStatus"]) == ("no", "1")
    assert unit["KillMode"] == "mixed" and int(unit["TimeoutStopSec"]) >= 60
    assert set(unit["SuccessExitStatus"].split()) == {"129", "130", "143"}


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / "swarm@run.service"
    path.write_text(UNIT.replace("/opt/swarm/bin/swarm", sys.executable))
    words = ["systemd-analyze", "verify", "--man=no", str(path)]
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_the_script_for_slurm_wants_a_word_and_becomes_the_peer(tmp_path: Path) -> None:
    peer = tmp_path / "swarm"
    peer.write_text('#!/bin/bash\necho "$SWARM_WORD" "$@"\n')
    peer.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path)}
    script = ["bash", str(DEPLOY / "swarm.sbatch")]
    without = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    assert without.returncode != 0 and "put an invite into SWARM_WORD" in without.stderr
    environ |= {"SWARM_WORD": "swarm1word", "SWARM_ROLE": "learner", "SLURM_ARRAY_TASK_ID": "3"}
    joined = subprocess.run(script, env=environ, capture_output=True, text=True, check=True)
    folder = tmp_path / "swarm-run" / "3"
    assert joined.stdout.split() == ["swarm1word", "join", "--as", "learner", "--folder", f"{folder}/run"]
    assert folder.is_dir()
