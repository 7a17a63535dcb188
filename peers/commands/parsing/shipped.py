"""Finds settings and scenarios by path, or by bare name among those that come with the program.

    demo              ./demo, ./demo.toml, then demo.toml of the program
    demo.toml         ./demo.toml, then demo.toml of the program
    mine/demo.toml    that file alone

Takes an argument and returns a file that exists. Not handled here: the file's contents
(swarm.settings.config, swarm.sim.scenario).
"""

from __future__ import annotations

from pathlib import Path

from peers.errors import WrongUsage

PLACES = (Path(__file__).parents[2] / "configs", Path(__file__).parents[3] / "configs")
"""A wheel has `configs/` inside the package `peers`; a checkout has it beside the packages."""


def settings(asked: Path) -> Path:
    """The settings file of this path, or of this name among those that ship. Raises WrongUsage."""
    return _find(asked, "", "settings")


def scenario(asked: Path) -> Path:
    """The scenario of `swarm sim` with this path, or of this name among those that ship. Raises
    WrongUsage."""
    return _find(asked, "scenarios", "scenarios")


def names_settings(asked: str) -> bool:
    """Whether `settings` would find a file of settings by it."""
    try:
        return settings(Path(asked)).suffix == ".toml"
    except (WrongUsage, OSError):
        return False


def _find(asked: Path, below: str, kind: str) -> Path:
    if str(asked).lower().startswith("swarm1"):  # not shown: it is a secret
        raise WrongUsage(f"this is an invite, and {kind} are a file: `swarm join` takes part by an invite")
    whole = not asked.name or asked.suffix == ".toml"  # nothing, `.` and `/` are folders without a name
    names = [asked] if whole else [asked, asked.with_name(f"{asked.name}.toml")]
    if len(asked.parts) == 1:
        names += [place / below / names[-1] for place in PLACES]
    # Anything but a folder: a pipe may be read, too.
    if found := next((name for name in names if name.exists() and not name.is_dir()), None):
        return found
    ours = _that_ship(below)
    why = "it is a folder" if asked.is_dir() else "No such file"
    if asked.stem in _that_ship("" if below else "scenarios"):
        command = "up" if below else "sim"
        why = f"{why} of {kind} (did you mean `swarm {command} {asked}`?)"
    if "=" in asked.name:
        raise WrongUsage(f"{asked} is a setting: name {kind} first, then --set {asked}")
    if asked.name.startswith("@"):
        why = "No such file; leave out the @"
    raise WrongUsage(f"cannot read {asked}: {why}; name one, or {kind} that ship: {', '.join(ours)}")


def _that_ship(below: str) -> list[str]:
    return sorted({file.stem for place in PLACES for file in (place / below).glob("*.toml")})
