"""Settings and scenarios by name: those of the current folder come first, then those that ship; a path is
that path alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT

from peers import cli
from peers.commands.parsing import shipped
from peers.errors import WrongUsage
from swarm.settings.layers import ConfigError

CONFIGS = ROOT / "configs"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_is_found_by_its_name_from_any_folder(path: Path) -> None:
    assert shipped.settings(Path(path.stem)).samefile(path)
    assert shipped.settings(Path(path.name)).samefile(path)


@pytest.mark.parametrize("path", sorted((CONFIGS / "scenarios").glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_is_found_by_its_name_from_any_folder(path: Path) -> None:
    assert shipped.scenario(Path(path.stem)).samefile(path)


def test_a_file_of_the_current_folder_comes_first_and_a_folder_of_that_name_is_none(elsewhere: Path) -> None:
    (elsewhere / "demo").mkdir()
    assert shipped.settings(Path("demo")).parent.samefile(CONFIGS)
    (elsewhere / "demo.toml").write_text("")
    assert shipped.settings(Path("demo")) == shipped.settings(Path("demo.toml")) == Path("demo.toml")


def test_a_path_is_that_path_alone(elsewhere: Path) -> None:
    for path in (Path("configs/demo.toml"), elsewhere / "demo.toml"):
        with pytest.raises(WrongUsage, match="cannot read"):
            shipped.settings(path)


def test_an_unknown_name_is_refused_with_those_that_ship() -> None:
    with pytest.raises(WrongUsage, match=r"cannot read dmeo: .* settings that ship: demo, gsm8k"):
        shipped.settings(Path("dmeo"))
    with pytest.raises(
        WrongUsage,
        match=r"scenarios that ship: faults, four-homes-lora, home-lines, lab-8b, one-home, paper-delay, "
        r"quick, slow-sites, two-homes, two-homes-sites, two-labs$",
    ):
        shipped.scenario(Path("demo"))


@pytest.mark.parametrize("name", ["private-lab", "paper-delay64"])
def test_a_copy_of_shipped_settings_extends_those_that_ship_where_none_are_beside_it(
    elsewhere: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "ours.toml").write_text((CONFIGS / f"{name}.toml").read_text())
    assert cli.run(["config", "check", "./ours.toml"]) == 0
    (elsewhere / "demo.toml").write_text("[run]\nseed = 77\n")
    assert cli.run(["config", "show", "ours"]) == 0
    assert "run.seed = 77" in capsys.readouterr().out, "one beside it comes first"


def test_what_is_extended_and_is_nowhere_is_looked_for_in_both_places(elsewhere: Path) -> None:
    (elsewhere / "ours.toml").write_text('extends = "dmeo.toml"\n')
    with pytest.raises(
        ConfigError, match=r"cannot read dmeo.toml, which ours.toml extends: .*settings that ship"
    ):
        cli.run(["config", "check", "ours.toml"])
    (elsewhere / "ours.toml").write_text('extends = "configs/demo.toml"\n')
    with pytest.raises(
        ConfigError, match=r"cannot read configs/demo.toml, which ours.toml extends: No such file"
    ):
        cli.run(["config", "check", "ours.toml"])


def test_commands_take_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "check", "private-lab"]) == 0
    assert "private-lab: good" in capsys.readouterr().out
