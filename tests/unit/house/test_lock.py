"""What CI installs is what pyproject.toml asks for, by hash; an advisory that nobody looked up may exist."""

import re
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from locks import audit, lock
from swarm import extras

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINE = re.compile(
    r'([a-z0-9-]+)==([^\s;]+)(?: ; python_version == "(3\.\d+)")?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n'
)
Rows = dict[str, tuple[str, str]]


def rows(name: str, python: str) -> Rows:
    """Package -> version and hashes, of a lock, for this Python."""
    text = re.sub(r"^#.*\n", "", (ROOT / "locks" / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert not LINE.sub("", text), "this is not a version with hashes"
    found = [row.groups() for row in LINE.finditer(text) if row[3] in (None, python)]
    assert len({package for package, *_ in found}) == len(found)
    return {package: (version, hashes) for package, version, _, hashes in found}


def everything(python: str) -> Rows:
    """What CI and make install; the version of torch's CPU build is that of torch, and a word more."""
    return rows("ci.lock", python) | rows("torch.lock", python)


def lacks(locked: Rows, asked: list[str], python: str) -> list[str]:
    """Those of these requirements, but for extras, that the lock does not satisfy."""
    here = {**lock.LINUX, "python_version": python, "python_full_version": f"{python}.9", "extra": ""}
    wanted = [each for each in map(Requirement, asked) if each.marker is None or each.marker.evaluate(here)]
    versions = [locked.get(canonicalize_name(each.name), ("",))[0] for each in wanted]
    return [
        str(each)
        for each, version in zip(wanted, versions, strict=True)
        if not version or not each.specifier.contains(version, prereleases=True)
    ]


@pytest.mark.parametrize("python", lock.PYTHONS)
def test_the_lock_has_what_pyproject_and_the_constraints_ask_for(python: str) -> None:
    constraints = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    asked = PROJECT["dependencies"] + constraints
    for extra in lock.EXTRAS:
        asked += [
            each for each in PROJECT["optional-dependencies"][extra] if not each.startswith(PROJECT["name"])
        ]
    assert not lacks(everything(python), asked, python), "the lock is old: run make lock"


def untried(locked: str) -> tuple[str, str]:
    """Versions that come after all that may have been tried beside this one: the next but one minor version,
    and the next major one."""
    major, minor = (*map(int, locked.split("+")[0].split(".")[:2]), 0)[:2]
    return f"{major}.{minor + 2}" if major == 0 else f"{major + 1}.0", f"{major + 1}.0"


def test_a_range_ends_with_what_was_tried() -> None:
    """`pip install` takes the newest: CI has what is locked, and `make test-install` the newest."""
    tried = everything("3.11")
    extra = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extra["peer"], *extra["quant"], *extra["gym"], *extra["plot"]]
    for each in (one for one in map(Requirement, asked) if one.name != PROJECT["name"]):
        locked = tried[canonicalize_name(each.name)][0]
        assert each.specifier.contains(locked), each
        assert not any(each.specifier.contains(version) for version in untried(locked)), each


@pytest.mark.parametrize("package", extras.TRIED)
def test_the_range_of_what_models_are_made_of_ends_with_the_minor_version_that_was_tried(
    package: str,
) -> None:
    (asked,) = (
        each for each in map(Requirement, PROJECT["optional-dependencies"]["peer"]) if each.name == package
    )
    major, minor = map(int, extras.TRIED[package].split(".")[:2])
    assert asked.specifier.contains(extras.TRIED[package])
    assert not asked.specifier.contains(f"{major}.{minor + 1}")


def test_the_lock_has_what_its_packages_ask_for() -> None:
    """As far as they are installed here at the version of the lock: pip installs it without asking them."""
    python = ".".join(map(str, sys.version_info[:2]))
    locked = everything(python)
    installed = [each.metadata for each in metadata.distributions()]
    same = [
        each for each in installed if locked.get(canonicalize_name(each["Name"]), ("",))[0] == each["Version"]
    ]
    assert len(same) > len(locked) / 2
    asked = {each["Name"]: each.get_all("Requires-Dist", []) for each in same if each["Name"] != "torch"}
    missing = {name: lacks(locked, requirements, python) for name, requirements in asked.items()}
    assert not {name: lacking for name, lacking in missing.items() if lacking}


@pytest.mark.parametrize("python", lock.PYTHONS)
def test_what_builds_is_a_part_of_the_lock(python: str) -> None:
    building = rows("build.lock", python)
    assert building.items() <= rows("ci.lock", python).items() and set(lock.BUILDERS) <= building.keys()


def test_both_builds_of_torch_have_one_version() -> None:
    (built,) = rows("torch-cpu.lock", "3.11").values()
    assert rows("torch.lock", "3.11")["torch"][0] == built[0].removesuffix("+cpu") != built[0]


def archive(name: str, digest: str) -> dict[str, object]:
    return {"url": f"registry/{name}", "hashes": {"sha256": digest}}


def test_a_package_is_locked_to_the_archives_that_this_machine_installs() -> None:
    wheels = {
        "one-1-cp311-cp311-manylinux_2_28_x86_64.whl": "linux",
        "one-1-cp39-abi3-manylinux2014_x86_64.whl": "stable",
        "one-1-cp312-cp312-musllinux_1_2_x86_64.whl": "musl",
        "one-1-cp311-cp311-manylinux_2_28_aarch64.whl": "arm",
        "one-1-cp313-cp313-manylinux_2_28_x86_64.whl": "newer",
    }
    one = {
        "name": "one",
        "version": "1",
        "wheels": [archive(*each) for each in wheels.items()],
        "sdist": archive("one-1.tar.gz", "source"),
    }
    source = {
        "name": "two",
        "version": "2",
        "wheels": [archive("two-2-cp311-cp311-win_amd64.whl", "win")],
        "sdist": archive("two.tar.gz", "tar"),
    }
    older = {
        "name": "three",
        "version": "3",
        "marker": "python_full_version < '3.12'",
        "sdist": archive("three.tar.gz", "old"),
    }
    elsewhere = {
        "name": "four",
        "version": "4",
        "marker": "sys_platform == 'win32'",
        "sdist": archive("four.tar.gz", "no"),
    }
    cuda = {"name": "nvidia-five", "version": "5", "sdist": archive("five.tar.gz", "no")}
    got = lock.locked([source, one, older, elsewhere, cuda])
    assert [(row.requirement(), row.hashes) for row in got] == [
        ("one==1", ("linux", "stable")),
        ('three==3 ; python_version == "3.11"', ("old",)),
        ("two==2", ("tar",)),
    ]


def known(name: str) -> dict[str, object]:
    return {"name": "one", "version": "1", "vulns": [{"id": name, "fix_versions": ["2"]}]}


def test_an_audit_says_what_is_known_and_what_it_could_not_look_up() -> None:
    fine, unknown = (
        {"name": "two", "version": "2", "vulns": []},
        {"name": "three", "skip_reason": "not found"},
    )
    assert audit.verdict([known("A-1"), fine], {"A-1": "why"})[1] == 0
    lines, status = audit.verdict([fine, unknown], {"A-1": "why"})
    assert status == 3 and "1 of 2 packages" in lines[0] and "not found" in lines[0]
    lines, status = audit.verdict([known("A-1"), unknown], {})
    assert status == 1 and lines[0] == "one 1: A-1, fixed in ['2']" and "1 of 2 packages" in lines[1]
    lines, status = audit.verdict([fine], {"A-1": "why"})
    assert status == 1 and "A-1" in lines[0]
