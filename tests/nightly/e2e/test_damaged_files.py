"""Everything was killed and many files of every role's folder are damaged: all come back and train on."""

from __future__ import annotations

from pathlib import Path

from swarm_processes import SETTINGS, UNHURRIED, Program, started_swarm, version

from swarm import events


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def test_peers_whose_files_are_damaged_come_back_with_what_is_left_and_say_what_is_not(
    tmp_path: Path,
) -> None:
    with started_swarm(tmp_path, SETTINGS) as it:

        def joined(role: str) -> Program:
            return it.join(role, *UNHURRIED * (role == "sampler"), folder=tmp_path / role)

        seed, learner, sampler = it.seed(), joined("learner"), joined("sampler")
        it.wait_until(lambda: version(learner) >= 4 and learner.saw(events.Saved), 120, "nothing was trained")
        it.wait_until(lambda: seed.saw(events.Released), 60, "the seed heard of no release")
        reached = version(learner)
        for program in (seed, learner, sampler):
            program.kill()

        run = it.folder
        flip(run / "spec")
        zero(run / "peers" / "seed" / "history") if (run / "peers" / "seed" / "history").exists() else None
        cut(newest(run, "peers/seed/releases/*"))
        (run / "peers" / "seed" / "port").write_text("80000")
        zero(run / "page")
        whole_config = (run / "model" / "config.json").read_bytes()
        flip(run / "model" / "config.json")

        mine = tmp_path / "learner"
        cut(mine / "spec"), cut(mine / "spec.copy")
        flip(mine / "model" / "tokenizer.json")
        flip(newest(mine, "peers/*/checkpoint/checkpoint.safetensors"))
        (mine / "peers" / "learner-1" / "pid").write_text("?")

        theirs = tmp_path / "sampler"
        cut(theirs / "peers" / "sampler-1" / "key")
        flip(theirs / "spec.copy")
        flip(newest(theirs, "peers/*/blobs/*[0-9a-f]"))

        seed, learner, sampler = it.seed(), joined("learner"), joined("sampler")
        it.wait_until(lambda: learner.saw(events.Trained), 180, "nobody trained after the damage")
        assert version(learner) >= reached - 4, "what was whole of the releases is used"
        said = {program.name: program.log.read_text() for program in (seed, learner, sampler)}
        for name, sentence in (
            ("seed", "spec was damaged: it is written again"),
            ("seed", "config.json is damaged"),
            ("learner", "tokenizer.json is damaged: it is fetched again"),
            ("sampler", "with a new key"),
            ("sampler", "spec.copy was damaged: it is written again"),
        ):
            assert sentence in said[name]
        (told,) = [
            event
            for event in learner.saw(events.Noted)
            if "checkpoint" in event.text and "going on" in event.text
        ]
        assert "damaged" in told.text
        it.wait_until(
            lambda: (run / "model" / "config.json").read_bytes() == whole_config,
            60,
            "the seed did not take its file from a peer",
        )
        assert all(program.process.poll() is None for program in (seed, learner, sampler))
        assert "bug" not in "".join(said.values())
