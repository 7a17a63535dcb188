"""The energy of a bench, from counters of a made folder."""

from __future__ import annotations

from pathlib import Path

from lab.figures import energy


def write(folder: Path, name: str, microjoules: int) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text("9999999\n")


def test_packages_are_added_up_and_a_counter_that_began_anew_is_no_gain(tmp_path: Path) -> None:
    write(tmp_path, "intel-rapl:0", 9_000_000)
    write(tmp_path, "intel-rapl:1", 1_000_000)
    write(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    before = energy.read(tmp_path)
    write(tmp_path, "intel-rapl:0", 500_000)
    write(tmp_path, "intel-rapl:1", 3_000_000)
    write(tmp_path, "intel-rapl:0:0", 5_000_000)
    assert energy.joules(before, energy.read(tmp_path)) == 1.5 + 2.0


def test_a_machine_without_counters_tells_nothing(tmp_path: Path) -> None:
    assert energy.joules(energy.read(tmp_path), energy.read(tmp_path / "none")) is None
