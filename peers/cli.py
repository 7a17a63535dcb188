"""The command line of `swarm`: defines and parses the arguments, and calls the command's function in
peers.verbs.

Every command is a function from parsed arguments to an exit code; `peers.errors.guarded` turns its exceptions
into exit codes. Results go to stdout, messages to stderr, and `identity` alone asks a question.
Torch and hivemind take seconds to import, so each command imports what it needs when it runs, and `--help`
needs neither. Not handled here: what the commands do.
"""

from __future__ import annotations

import argparse
import codecs
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers import verbs
from peers.commands.invites import identity
from peers.commands.parsing import options
from peers.commands.parsing.parser import CommandParser, add_command, sentence
from peers.commands.runs import service
from peers.errors import USAGE, WrongUsage, explain, guarded
from swarm.protocol import JOINING

ROLES = ("auto", *(role.value for role in JOINING))


_SPELLINGS = "-> <- x ... - - * o ! x + _ _ . . - - = #".split()
SPELLED = str.maketrans(dict(zip("→←×…·–●◌▲✕✓▁▂▃▄▅▆▇█", _SPELLINGS, strict=True)))
"""Replacements of the non-ASCII characters that we print, for an output that cannot show them."""


def main(said: Sequence[str] | None = None) -> int:
    _print_in_any_encoding()
    return guarded(lambda: run(sys.argv[1:] if said is None else said))


def _print_in_any_encoding() -> None:
    def spell(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        wanted = error.object[error.start : error.end].translate(SPELLED)
        return wanted.encode(error.encoding, "replace").decode(error.encoding), error.end

    codecs.register_error("spelled", spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test or a program may have put something else there
            stream.reconfigure(errors="spelled")


def run(said: Sequence[str]) -> int:
    args = parser().parse_args(_in_order(said))
    if args.command is None:
        parser().print_help(sys.stderr)
        return USAGE
    # hivemind reads it when it is imported, and its children inherit it. Its warnings are normal events of a
    # swarm.
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "INFO" if args.verbose else "ERROR")
    try:
        code: int = args.command(args)
    except Exception as error:
        if getattr(args, "json", False) and (known := explain(error)) is not None:
            print(json.dumps({"ok": False, "code": known[0], "error": known[1]}))
        raise
    sys.stdout.flush()
    return code


def _in_order(said: Sequence[str]) -> list[str]:
    """The arguments in the order that the parser expects: options that many commands share move behind the
    command, and `help COMMAND` becomes `COMMAND --help`. Raises WrongUsage for any other option before the
    command."""
    first = next((k for k, word in enumerate(said) if word not in ANYWHERE), len(said))
    before, words = said[:first], list(said[first:])
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif len(words) > 1 and words[0].startswith("-") and words[0] not in FIRST:
        raise WrongUsage(f"options come after the command: swarm COMMAND ... {words[0]}")
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *before, *words[end:]]


ANYWHERE = ("--json", "-v", "--verbose")
"""Options that may come before the command, too."""

FIRST = ("-h", "--help", "-V", "--version")
"""Options without a command."""

CONFIG = "a TOML file, or the name of one that ships, such as demo"

RUN = ("folder", "set", "model")
SETTINGS = ("set", "model", "json")

EXAMPLE = """examples:
  swarm up demo                                  a whole swarm on this machine, to see it work
  swarm start private-lab                        start a run that others can join; prints how
  swarm join swarm1...                           take part in a run
  swarm status --watch                           what the swarm is doing
  swarm why                                      why a peer of this machine is idle, and what to do

`swarm help COMMAND` lists a command's options.

exit codes: 0 done, 1 our bug, 2 usage or config, 3 this machine cannot, 4 no answer, 5 refused,
129, 130 and 143 left on a signal"""


def parser() -> argparse.ArgumentParser:
    from swarm import __version__

    root = CommandParser(
        prog="swarm",
        description=(
            "Train a language model by reinforcement learning in a swarm of peers that do not wait for each"
            " other."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("-V", "--version", action="version", version=f"swarm {__version__}")
    root.set_defaults(command=None)
    commands = root.add_subparsers(title="commands", metavar="COMMAND")
    _add_running(commands)
    _add_keeping(commands)
    _add_simulation(commands)
    _add_reading(commands)
    _add_members(commands)
    _add_policies(commands)
    _add_evidence(commands)
    _add_machine(commands)
    _add_bench(commands)
    _add_task(commands)
    _add_config(commands)
    service.add(commands, lambda words: parser().parse_args(words))
    identity.add(commands)
    return root


def _add_running(commands: Any) -> None:
    about = "run a whole swarm on this machine until it is complete"
    it = add_command(commands, "up", verbs.up, about, "swarm up demo", RUN)
    _config(it)
    options.line(it)
    about = "start a run, be its seed, and print how to join"
    it = add_command(commands, "start", verbs.start, about, "swarm start private-lab", RUN)
    it.add_argument("config", metavar="CONFIG", type=Path, nargs="?", help=CONFIG)
    adopt = "instead of CONFIG: be a seed of the run in this peer's folder, which needs the owner.key or"
    it.add_argument("--adopt", type=Path, metavar="FOLDER", help=f"{adopt} an invite for seeds in it")
    options.line(it)
    options.serve(it)
    it.add_argument("--no-page", action="store_true", help="do not serve the dashboard")
    it = add_command(
        commands,
        "join",
        verbs.join,
        "take part in a run that an invite names",
        "swarm join swarm1... --as sampler",
        RUN,
    )
    options.invite_argument(it, "what `swarm start` or `swarm invite` printed")
    as_help = "the role; auto takes the invite's, or what fits this machine"
    it.add_argument(
        "--config", type=Path, metavar="FILE", help="this peer's settings: a TOML file with a [peer] section"
    )
    it.add_argument("--as", dest="role", choices=ROLES, default="auto", help=as_help)
    it.add_argument("--own", action="store_true", help=argparse.SUPPRESS)  # `swarm up` says it to its peers
    options.line(it)
    options.guest(it)
    options.serve(it)
    options.once(it)


def _add_keeping(commands: Any) -> None:
    about = "pause this machine's peers of a run after the current group or step; they keep their places"
    it = add_command(commands, "pause", verbs.pause, about, "swarm pause --for 2h", ("folder",))
    lasts = "such as 30m, 2h or 7d (default: until `swarm resume`), also over restarts"
    it.add_argument("--for", dest="lasts", type=options.seconds, metavar="TIME", help=lasts)
    about = "end a pause"
    add_command(commands, "resume", verbs.resume, about, "swarm resume", ("folder",))
    about = "ask the peers of a run on this machine to finish and leave"
    add_command(commands, "leave", verbs.leave, about, "swarm leave --folder ./demo-run", ("folder",))


def _add_simulation(commands: Any) -> None:
    about = "simulate a swarm in virtual time"
    it = add_command(commands, "sim", verbs.simulate, about, "swarm sim paper-delay --seed 7", ())
    it.add_argument(
        "scenario",
        metavar="SCENARIO",
        type=Path,
        nargs="?",
        help="a TOML file, or the name of one that ships, such as quick",
    )
    it.add_argument(
        "--nemesis",
        type=int,
        metavar="SEED",
        help="random faults from this seed, then a quiet time; prints what broke, and the shortest script"
        " that breaks it",
    )
    it.add_argument(
        "--seed",
        type=int,
        default=None,
        help="instead of the scenario's; the same seed gives the same journal",
    )
    it.add_argument("--out", type=Path, default=None, metavar="FILE", help="where the journal is kept")


def _add_reading(commands: Any) -> None:
    it = add_command(
        commands,
        "status",
        verbs.status,
        "show what a swarm is doing",
        "swarm status --watch",
        ("folder", "set", "json"),
    )
    options.invite_argument(it, "the invite of a run elsewhere (default: the run on this machine)")
    it.add_argument("--watch", action="store_true", help="keep updating; in a pipe, print it every 5 s")
    about = "explain what the peers of this folder are doing, why one is idle, and what to do"
    add_command(commands, "why", verbs.why, about, "swarm why --folder ./demo-run", ("folder", "json"))
    _add_windows(commands)


def _add_members(commands: Any) -> None:
    about = "print an invite to the run, in the folder of any of its peers"
    it = add_command(
        commands, "invite", verbs.invite_, about, "swarm invite --role learner", ("folder", "json")
    )
    options.invite(it)
    about = "end the membership of a peer, or of all that joined with an invite; needs owner.key"
    it = add_command(commands, "revoke", verbs.revoke, about, "swarm revoke brisk-umber-otter", ("folder",))
    who = "a peer's id or name, or an invite or its last letters, as `swarm invite --list` shows them"
    it.add_argument("who", metavar="PEER|INVITE", nargs="*", type=options.hidden, help=who)
    options.invite_file(it)


def _add_policies(commands: Any) -> None:
    it = add_command(
        commands,
        "export",
        verbs.export,
        "write the newest policy as a Hugging Face folder",
        "swarm export ./my-model",
        ("folder",),
    )
    it.add_argument(
        "target", metavar="DIR", type=Path, help="the folder to write; `from_pretrained` loads it"
    )
    options.force(it)
    _add_push(commands)


def _add_evidence(commands: Any) -> None:
    about = "replay a group whose sampler was accused of cheating; exit code 5: the evidence does not hold"
    it = add_command(
        commands, "verify", verbs.verify, about, "swarm verify evidence/GROUP.evidence", ("folder", "set")
    )
    it.add_argument(
        "evidence", metavar="EVIDENCE", type=Path, help="a file of the folder `evidence` of a learner"
    )
    named = "safetensors of the version that the group names (default: beside EVIDENCE, or what a peer holds)"
    it.add_argument("--release", metavar="FILE", type=Path, help=named)
    about = "lift a sampler's suspension: at this folder's learners, with owner.key at all"
    it = add_command(commands, "pardon", verbs.pardon, about, "swarm pardon 12D3KooW...", ("folder",))
    it.add_argument("peer", metavar="PEER", help="the sampler's name, id or beginning of an id")


def _add_machine(commands: Any) -> None:
    about = "check whether this machine can take part, in the run of INVITE if one is given, and what to fix"
    it = add_command(
        commands, "doctor", verbs.doctor, about, "swarm doctor swarm1...", ("folder", "set", "json")
    )
    options.invite_argument(it, "check this run too, without joining it")
    about = (
        "predict and measure which roles fit on this machine with a model, in which precision, and how fast"
    )
    it = add_command(commands, "fit", verbs.fit, about, "swarm fit Qwen/Qwen3-0.6B", ("set", "json"))
    it.add_argument(
        "model_or_config",
        metavar="MODEL",
        help="a Hub id, a folder, or a config such as gsm8k-0.6b.toml",
    )
    it.add_argument("--no-measure", action="store_true", help="predict only: seconds instead of minutes")
    about = "list the learning objectives, or show the parts of one"
    it = add_command(commands, "objectives", verbs.objectives, about, "swarm objectives gepo", ("json",))
    it.add_argument("names", metavar="NAME", nargs="*", help="without one: all, a line each")


def _add_push(commands: Any) -> None:
    about = "upload the newest policy to the Hugging Face Hub, with a model card"
    it = add_command(commands, "push", verbs.push, about, "swarm push ada/my-model", ("folder",))
    it.add_argument(
        "repo",
        metavar="REPO",
        help="owner/name, or a name in your own namespace; created if it does not exist",
    )
    only = "write the folder with its card to DIR instead, and upload nothing"
    it.add_argument("--to", metavar="DIR", type=Path, help=only)
    options.force(it)
    it.add_argument("--public", action="store_true", help="make a new repository public")
    named = "such as apache-2.0 (default: that of the base model, if it is known)"
    it.add_argument("--license", metavar="ID", help=named)


def _add_windows(commands: Any) -> None:
    about = "join a swarm as an observer and serve its dashboard"
    it = add_command(
        commands,
        "dashboard",
        verbs.dashboard,
        about,
        "swarm dashboard swarm1... --port 8080",
        ("folder", "set"),
    )
    options.invite_argument(it, "any invite of a public swarm, an observer's of a private one")
    options.page(it)
    options.once(it)
    about = "serve the dashboard of a finished run, or reproduce one of its versions"
    it = add_command(commands, "replay", verbs.replay, about, "swarm replay demo-run --speed 10", ("set",))
    named = "a journal.jsonl, or a run's folder"
    it.add_argument("journal", metavar="JOURNAL", type=Path, nargs="*", help=named)
    it.add_argument(
        "--version",
        type=int,
        metavar="V",
        help="reproduce version V bit for bit from what learners recorded (peer.learner.record;"
        " name folders `record` from elsewhere after the run's); exit code 5: the bits differ",
    )
    it.add_argument(
        "--audit",
        action="store_true",
        help="read all journals in these folders and account for every acknowledged group (exit"
        " code 1 if one was lost or trained twice)",
    )
    named = "play from the beginning at this speed, in journal seconds a second"
    it.add_argument("--speed", type=options.speed, metavar="X", help=named)
    options.page(it)
    about = "draw runs side by side: accuracy, reward, lag, KL"
    it = add_command(commands, "plot", verbs.plot, about, "swarm plot demo-run other-run --x hours", ())
    it.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a run's folder, or a journal.jsonl")
    it.add_argument("--x", choices=("version", "hours", "tokens"), default="version", help="over what")
    picture = Path("swarm-plot.png")
    it.add_argument("--out", metavar="FILE", type=Path, default=picture, help=f"a PNG or SVG ({picture})")


def _add_bench(commands: Any) -> None:
    about = "measure and print the table of figures, or run a study (in a checkout)"
    it = add_command(commands, "bench", verbs.bench, about, "swarm bench gradient --quick", ("json",))
    rows = (
        "join, installed, groups, averaging, tokens, accuracy, memory, patches, releases, rounds; without"
        " one, all of these (under ten minutes on two idle cores). By name alone: averaging-100M, tokens-13M,"
        " real, faults, simulator, learner, learner-smollm2, refill, busy, gpu, gpu-rehearsal"
    )
    it.add_argument(
        "names",
        metavar="ROW",
        nargs="*",
        help=f"{rows}. Or one study: gradient, staleness, band, adversaries, nemesis",
    )
    it.add_argument("-n", type=int, metavar="N", help="nemesis: swarms to try (default: 100)")
    it.add_argument(
        "--quick",
        action="store_true",
        help="a small version of a study (not nemesis): minutes instead of hours",
    )
    goes_on = "a study's folder (not nemesis); the same command resumes there (default: ./bench-STUDY)"
    it.add_argument("--out", type=Path, metavar="DIR", help=goes_on)
    only = "gradient, staleness: only these objectives, such as gepo,gspo/eps=0.2"
    it.add_argument("--methods", default="", metavar="A,B", help=only)
    it.add_argument(
        "--compare",
        type=Path,
        metavar="OLD.json",
        help="measure the rows of an earlier table (--json) again; worse beyond noise is an error",
    )
    fresh = "gradient, staleness, nemesis: the first seed"
    it.add_argument("--seed", type=int, metavar="N", help=fresh)
    it.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        help="staleness, band, adversaries: start no new training after this long; 0: no limit",
    )
    for kind, who in (
        ("learners", "that lie"),
        ("samplers", "that cheat"),
        ("honest", "samplers, and some that steer"),
    ):
        it.add_argument(f"--{kind}", action="store_true", help=f"adversaries: only {kind} {who}")


def _add_task(commands: Any) -> None:
    about = "try a task: exercises, right and wrong answers, and their rewards"
    example = "swarm task try data:./problems.jsonl --set task.rewards=my_rewards.py:length -n 3"
    outer = commands.add_parser("task", help=about, description=sentence(about), epilog=f"example: {example}")
    outer.set_defaults(command=lambda args: outer.error("try?"), verbose=False)
    inner = outer.add_subparsers(title="commands", metavar="COMMAND")
    it = add_command(inner, "try", verbs.task_try, about, example, SETTINGS)
    it.add_argument(
        "task",
        metavar="NAME",
        help="a task such as digit-sums, data:FILE or gym:NAME, or a config such as my.toml",
    )
    it.add_argument("-n", type=int, default=5, metavar="N", help="exercises (default: 5)")
    it.add_argument("--say", metavar="TEXT", help="also score this completion")


def _add_config(commands: Any) -> None:
    about = "show, check, copy or explain settings"
    example = "swarm config show demo --set run.seed=3"
    outer = commands.add_parser(
        "config", help=about, description=sentence(about), epilog=f"example: {example}"
    )
    outer.set_defaults(command=lambda args: outer.error("show, check, copy or schema?"), verbose=False)
    inner = outer.add_subparsers(title="commands", metavar="COMMAND")
    it = add_command(
        inner, "show", verbs.config_show, "print every setting with its origin", example, SETTINGS
    )
    it.add_argument(
        "config", metavar="CONFIG", type=Path, nargs="?", help=f"{CONFIG}; without it, the defaults"
    )
    _config(
        add_command(
            inner,
            "check",
            verbs.config_check,
            "check a file of settings",
            "swarm config check demo",
            SETTINGS,
        )
    )
    about = "copy settings that ship to a file, to edit them"
    it = add_command(inner, "copy", verbs.config_copy, about, "swarm config copy demo my.toml", ())
    _config(it)
    it.add_argument("target", metavar="FILE", type=Path, help="a new file, or a folder")
    about = "print every key with its default, range and meaning"
    add_command(inner, "schema", verbs.config_schema, about, "swarm config schema", ("json",))


def _config(it: argparse.ArgumentParser) -> None:
    it.add_argument("config", metavar="CONFIG", type=Path, help=CONFIG)


if __name__ == "__main__":
    sys.exit(main())
