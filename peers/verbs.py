"""One function for each command of `swarm`: from parsed arguments to a call of the command and its exit code.

    Namespace --verb--> settings, folder --one function of peers.commands or build--> exit code

Results go to stdout, messages to stderr. Torch and hivemind take seconds to import, so each verb imports what
it needs when it runs. Not handled here: the arguments (peers.cli), what the commands do.
"""

from __future__ import annotations

import argparse
import importlib
import json
from functools import partial
from typing import Any

from peers.commands import run_check
from peers.commands.parsing import arguments, shipped
from peers.errors import CannotHere, WrongUsage, say, writing
from swarm import extras
from swarm.net.libp2p.listening import check_named
from swarm.protocol import Role


def up(args: argparse.Namespace) -> int:
    loaded = arguments.load(args, args.config)
    folder = arguments.folder_of(args, loaded)
    run_check.check(loaded, folder)
    from peers.build.run_in_fork import apart
    from peers.commands.runs import up as program

    apart(partial(run_check.check_objective, loaded))  # torch is for its peers

    return program.up(loaded, folder)


def start(args: argparse.Namespace) -> int:
    loaded = arguments.load(args, args.config)
    if args.adopt is not None:
        if args.config is not None or args.folder is not None:
            raise WrongUsage("--adopt FOLDER has the run's settings: leave CONFIG and --folder out")
        if args.adopt.is_file():
            raise WrongUsage(f"--adopt {args.adopt} is a file: name the folder of one of the run's peers")
        arguments.refuse_run_settings(loaded)
        from peers.build import assembly
        from peers.build.run_folder import check_files

        return assembly.adopt(loaded.config, check_files(args.adopt), not args.no_page)
    if args.config is None:
        raise WrongUsage("name a file of settings, such as private-lab, or a folder with --adopt")
    folder = arguments.folder_of(args, loaded)
    check_named(loaded.config.peer.listen)
    run_check.check(loaded, folder)
    from peers.build import assembly

    return assembly.start(loaded, folder, not args.no_page, partial(run_check.check_objective, loaded))


def join(args: argparse.Namespace) -> int:
    loaded = arguments.load(args, args.config)
    arguments.refuse_run_settings(loaded)
    invite_text = arguments.needed_invite(args)
    invite = arguments.read_invite(invite_text, args.folder)  # offline, before anything slow is imported
    role = None if args.role == "auto" else Role(args.role)
    if (role or invite.role) is Role.OBSERVER and loaded.config.peer.serve != "mirror":
        raise WrongUsage(
            "this invite is for observers: `swarm dashboard` with it shows the swarm, and"
            " `swarm join --serve mirror` spreads its releases"
        )
    extras.need(extras.PEER)  # before this peer has a folder
    say(f"run {invite.run[:12]}: loading the program (some seconds; longer the first time)")
    from peers.build import assembly

    return assembly.join(invite_text, role, loaded, args.folder, args.once, args.own)


def dashboard(args: argparse.Namespace) -> int:
    loaded = arguments.load_window(args)
    invite_text = arguments.needed_invite(args)
    arguments.read_invite(invite_text, args.folder)
    from peers.commands.journals import dashboard as window
    from peers.commands.run_check import need_tracker

    need_tracker(loaded.config.peer.track)
    return window.dashboard(invite_text, loaded.config, args.folder, args.once)


def replay(args: argparse.Namespace) -> int:
    if args.version is not None:
        if args.audit or args.speed is not None:
            raise WrongUsage("--version makes a version again: leave --audit and --speed out")
        extras.need(extras.PEER)
        args.folder = args.journal[0] if args.journal else None
        folder = arguments.only_folder(args)
        from peers.commands.journals import remake

        return remake.remake(args.version, args.journal[1:], folder, arguments.load(args, None).config)
    if not args.journal:
        raise WrongUsage("name a journal.jsonl, or a run's folder")
    if args.audit:
        from peers.commands.journals import audit

        return audit.run(args.journal)
    if len(args.journal) > 1:
        raise WrongUsage("the dashboard plays one journal: give one, or add --audit to check several")
    loaded = arguments.load_window(args)
    from peers.commands.journals import dashboard as window

    return window.replay(args.journal[0], loaded.config, args.speed)


def plot(args: argparse.Namespace) -> int:
    from peers.commands.journals import plot as program

    with writing(args.out):
        return program.main(args.runs, args.x, args.out)


def status(args: argparse.Namespace) -> int:
    loaded = arguments.load(args, None)
    invite_text = arguments.invite_or_folder(args) or None
    if invite_text is not None:
        arguments.read_invite(invite_text, args.folder)
    folder = args.folder if invite_text is not None else arguments.only_folder(args)
    from peers.commands.runs import status as program

    return program.status(folder, invite_text, loaded.config, args.watch, args.json)


def why(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.runs import why as program

    return program.why(folder, args.json)


def pause(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.runs import pause as program

    return program.pause(folder, args.lasts)


def resume(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.runs import pause as program

    return program.resume(folder)


def leave(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.runs import status as program

    return program.leave(folder)


def export(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.policies import export as program

    with writing(args.target):
        return program.export(folder, args.target, args.force)


def push(args: argparse.Namespace) -> int:
    extras.need(extras.PEER)
    folder = arguments.only_folder(args)
    from peers.commands.policies import push as program

    with writing(args.to):
        return program.push(folder, args.repo, args.to, args.public, args.license, args.force)


def verify(args: argparse.Namespace) -> int:
    extras.need(extras.PEER)
    from peers.commands.journals import verify as program

    return program.verify(args.evidence, args.folder, args.release, arguments.load(args, None).config)


def pardon(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.invites import pardon as program

    return program.pardon(folder, args.peer)


def invite_(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.invites import invite as program

    if args.list:
        return program.listed(folder, args.json)
    said = args.expires, args.note, args.json, args.qr
    if args.renew is not None:
        if args.role is not None or args.uses:
            raise WrongUsage("--renew keeps an invite's role and number of uses: leave --role and --uses out")
        if not (invite_text := arguments.given_invite(args, args.renew)):
            raise WrongUsage("no invite to renew: pass --renew INVITE, --renew - or --renew --word-file FILE")
        return program.renew(folder, invite_text, *said)
    if args.word_file is not None:
        raise WrongUsage("--word-file has an invite to renew: add --renew, or leave it out")
    return program.make(folder, Role(args.role or Role.SAMPLER), args.uses, *said)


def revoke(args: argparse.Namespace) -> int:
    folder = arguments.only_folder(args)
    from peers.commands.invites import revoke as program

    if not (who := arguments.given_invite(args, args.who, from_environment=False)):
        raise WrongUsage("name a peer's id or name, or an invite: as an argument, -, or --word-file FILE")
    return program.main(folder, who)


def simulate(args: argparse.Namespace) -> int:
    if (args.scenario is None) is (args.nemesis is None):
        raise WrongUsage("name a scenario, such as quick, or --nemesis SEED: one of them")
    if args.out is not None and args.out.is_dir():
        raise WrongUsage(f"--out {args.out} is a folder: name the journal's file")
    if args.nemesis is not None:
        if args.seed is not None:
            raise WrongUsage(f"--nemesis {args.nemesis} is the seed: leave out --seed {args.seed}")
        return int(_lab(f"sim --nemesis {args.nemesis}").trial(args.nemesis, args.out))
    path = shipped.scenario(args.scenario)  # before torch is imported
    from peers.commands import sim as program

    with writing(args.out):
        return program.simulate(path, args.seed, args.out)


def doctor(args: argparse.Namespace) -> int:
    from peers.build.run_folder import check_files
    from peers.commands.doctor import machine_checks as program

    loaded = arguments.load(args, None)
    arguments.refuse_run_settings(loaded)
    if args.folder is not None:
        check_files(args.folder)
    return program.main(args.folder, args.json, arguments.invite_or_folder(args), loaded.config)


def fit(args: argparse.Namespace) -> int:
    loaded = arguments.load_fit(args)
    if why := run_check.file_of_weights(loaded.config.run.model.name):
        raise WrongUsage(why)
    from peers.commands.fit import command as measure

    return measure.main(loaded.config, args.model_or_config, not args.no_measure, args.json)


def bench(args: argparse.Namespace) -> int:
    return int(_lab(" ".join(("bench", *args.names))).bench(args))


def _lab(command: str) -> Any:
    """`lab.command`, which only a checkout has. It is imported by name because lab imports peers, and the
    import contracts forbid the reverse. Raises CannotHere where it is missing; `command` is the requested
    `swarm` command."""
    try:
        return importlib.import_module("lab.command")
    except ModuleNotFoundError as missing:
        if missing.name not in ("lab", "lab.command"):
            raise
        raise CannotHere(
            f"`swarm {command}` is in lab/ of a checkout, not in the installed program: run"
            f" `make .venv/.bench` in a checkout, then `.venv/bin/swarm {command}`"
        ) from None


def objectives(args: argparse.Namespace) -> int:
    from peers.commands import objectives as catalogue

    return catalogue.main(args.names, args.json)


def task_try(args: argparse.Namespace) -> int:
    loaded = arguments.load_task(args)
    run = loaded.config.run
    if (args.task.endswith(".toml") or run.model.name != "embedded") and (why := run_check.unknown_rate(run)):
        say(f"swarm: a run with these settings does not start: {why}")
    from peers.commands import task_try as trial

    modelled = loaded.config.run.model.name != "embedded"
    return trial.main(loaded.config.run, args.n, modelled, args.json, args.say)


def config_show(args: argparse.Namespace) -> int:
    from swarm.settings import loading

    loaded = arguments.load(args, args.config)
    values = {key: loading.value(loaded.config, key) for key in loaded.origins}
    if args.json:
        print(
            json.dumps(
                {key: {"value": values[key], "origin": origin} for key, origin in loaded.origins.items()},
                indent=2,
            )
        )
        return 0
    lines = {key: f"{key} = {loading.toml(values[key])}" for key in loaded.origins}
    width = min(60, max(map(len, lines.values())))
    for key, origin in loaded.origins.items():
        print(f"{lines[key]:{width}}  # {origin}")
    return 0


def config_check(args: argparse.Namespace) -> int:
    loaded = arguments.load(args, args.config)
    run_check.check(loaded)
    run_check.check_objective(loaded)
    changed = sorted(key for key, origin in loaded.origins.items() if origin != "default")
    said = {"ok": True, "config": str(args.config), "changed": changed}
    print(json.dumps(said) if args.json else f"{args.config}: good; settings changed: {len(changed)}")
    return 0


def config_copy(args: argparse.Namespace) -> int:
    source = shipped.settings(args.config)
    target = args.target / source.name if args.target.is_dir() else args.target
    with writing(args.target):
        try:
            with open(target, "xb") as file:
                file.write(source.read_bytes())
        except FileExistsError as error:
            raise WrongUsage(f"{target} is there already, and is not overwritten: name another") from error
    print(target)
    return 0


def config_schema(args: argparse.Namespace) -> int:
    from swarm.settings import layers, loading

    if not args.json:
        print(loading.schema_text(), end="")
        return 0
    keys = loading.SCHEMA.keys
    print(
        json.dumps(
            {k: {"default": loading.SCHEMA.default(k), "wants": layers.describe(keys[k].type)} for k in keys},
            indent=2,
        )
    )
    return 0
