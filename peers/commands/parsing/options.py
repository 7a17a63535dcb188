"""Options that several commands share, and parsers of their values: lines, limits of a guest, dashboards,
times.

`--help` imports nothing slow. Not handled here: which command has which (peers.cli).
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from swarm.frames.grammar import some
from swarm.processes.processors import processors
from swarm.protocol import Role

WORD = "SWARM_WORD"
"""Environment variable with the invite of a command that is given none."""


def invite_argument(it: argparse.ArgumentParser, about: str) -> None:
    """The invite of a command; arguments.given_invite reads it."""
    ways = f"; - reads standard input (default: {WORD} in the environment)"
    it.add_argument("invite", metavar="INVITE", nargs="*", type=hidden, help=about + ways)
    invite_file(it)


def invite_file(it: argparse.ArgumentParser) -> None:
    about = "read the invite from this file, so that the process list does not show it to other users"
    it.add_argument("--word-file", metavar="FILE", type=_invite_file, help=about)


def _invite_file(text: str) -> Path:
    return Path(hidden(text) if text.lower().startswith("swarm1") else text)


def hidden(text: str) -> str:
    """An argument that may be a piece of an invite, which is a secret: `ps` shows it no more."""
    from swarm.processes.start import hide_argument

    hide_argument(text)
    return text


def line(it: argparse.ArgumentParser) -> None:
    """A peer's line rates; see arguments.SHORT."""
    for way, what in (("upload", "sends"), ("download", "takes")):
        about = f"most Mbit/s that a peer {what}, or such as 2MB/s; groups do not wait (default: no limit)"
        it.add_argument(f"--{way}", metavar="MBIT", type=rate, help=about)


def guest(it: argparse.ArgumentParser) -> None:
    """A peer's limits on this machine, and its working hours; see arguments.SHORT."""
    about = "share of this machine's cores, such as 0.5, 50%% or 2cores"
    it.add_argument("--cpu", metavar="SHARE", type=cores, help=about)
    it.add_argument("--nice", metavar="N", help="0 to 19: at 19 it uses only what other programs leave")
    about = "RAM, such as 8, 8GiB or 512MB: above that the peer does not start, or leaves"
    it.add_argument("--memory", metavar="GB", type=size, help=about)
    about = "share of a GPU's memory, such as 0.5 or 50%%"
    it.add_argument("--gpu-memory", metavar="SHARE", type=share, help=about)
    about = "size of its folder, such as 20, 20GiB or 500MB: above that the peer leaves"
    it.add_argument("--disk", metavar="GB", type=size, help=about)
    it.add_argument("--hours", metavar="H-H", help="local hours in which it works, such as 22-7")
    about = "rest while this machine runs on a battery"
    it.add_argument("--no-battery", dest="battery", action="store_const", const="false", help=about)
    about = "rest while other programs take more than a quarter of the processor"
    it.add_argument("--when-idle", dest="others", action="store_const", const="0.25", help=about)


def serve(it: argparse.ArgumentParser) -> None:
    about = "mirror: fetch each release at once and serve it first; with an observer's invite nothing else"
    it.add_argument("--serve", choices=("held", "mirror"), help=about)


def once(it: argparse.ArgumentParser) -> None:
    about = "if no peer answers, exit with code 4 instead of retrying"
    it.add_argument("--once", action="store_true", help=about)


def force(it: argparse.ArgumentParser) -> None:
    about = "overwrite the files of a folder that is not empty"
    it.add_argument("--force", action="store_true", help=about)


def page(it: argparse.ArgumentParser) -> None:
    it.add_argument(
        "--host", metavar="ADDRESS", help="where to listen (default: 127.0.0.1, this machine only)"
    )
    it.add_argument(
        "--port", type=int, metavar="N", help="the dashboard's port (default: 8080, or the next free one)"
    )


def invite(it: argparse.ArgumentParser) -> None:
    it.add_argument(
        "--role",
        choices=tuple(role.value for role in Role),
        help="what it invites as (default: sampler)",
    )
    ends = "such as 12h or 7d: the invite expires then, and with it every membership that it gave"
    otherwise = "without it an invite that makes members expires after 30d, and memberships are renewed"
    otherwise += "; with --renew only for an invite that was made with it"
    it.add_argument("--expires", type=seconds, metavar="TIME", help=f"{ends}; {otherwise}")
    counted = "admit this many peers, counted in the owner's folder, which signs each membership"
    it.add_argument("--uses", type=count, metavar="N", default=0, help=counted)
    longer = "with owner.key: print the invite with a later expiry; elsewhere: keep it, and renew memberships"
    it.add_argument("--renew", nargs="*", metavar="INVITE", type=hidden, help=longer)
    invite_file(it)
    it.add_argument("--note", metavar="TEXT", default="", help="who the invite is for; --list shows it")
    it.add_argument(
        "--list", action="store_true", help="instead: list the invites of this folder and when they expire"
    )
    it.add_argument("--qr", action="store_true", help="also print a QR code")


_AMOUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(.*)", re.DOTALL)

_GB = {"": 1.0, "k": 1e-6, "m": 1e-3, "g": 1.0, "t": 1e3, "ki": 2**10 / 1e9, "mi": 2**20 / 1e9}
_GB |= {"gi": 2**30 / 1e9, "ti": 2**40 / 1e9}
"""Beginning of a unit of memory -> GB."""

_MBIT = {"": 1.0, "kbit": 1e-3, "mbit": 1.0, "gbit": 1e3, "kb": 1e-3, "mb": 1.0, "gb": 1e3}
_MBIT |= {"kB": 8e-3, "KB": 8e-3, "MB": 8.0, "GB": 8e3, "MiB": 8 * 2**20 / 1e6, "KiB": 8 * 2**10 / 1e6}
"""Unit of a rate, without its per-second part -> Mbit/s. A small b is a bit."""


def _amount(text: str) -> tuple[float, str]:
    """A number and the unit after it; raises ValueError."""
    if (found := _AMOUNT.fullmatch(text.strip())) is None:
        raise ValueError(text)
    return float(found[1]), found[2]


def size(text: str) -> str:
    """An amount of memory -> the number of GB."""
    try:
        number, unit = _amount(text)
        return f"{number * _GB[unit.lower().removesuffix('b')]:.9g}"
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text} is not a size such as 8 (GB), 8GiB or 512MB") from None


def rate(text: str) -> str:
    """A rate -> the number of Mbit/s."""
    try:
        number, unit = _amount(text)
        unit = re.sub(r"(/s|/sec|ps)$", "", unit)
        return f"{number * _MBIT[unit if unit in _MBIT else unit.lower()]:.9g}"
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"{text} is not a rate such as 15 (Mbit/s), 15Mbit or 2MB/s"
        ) from None


def share(text: str) -> str:
    """A share, or so many per cent -> a number from 0 to 1."""
    try:
        number, unit = _amount(text)
        number *= {"": 1.0, "%": 0.01}[unit]
    except (ValueError, KeyError):
        number = -1.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share such as 0.5 or 50%")
    return f"{number:.9g}"


def cores(text: str) -> str:
    """A share of this machine's cores, or so many of them -> a number from 0 to 1."""
    there = processors()
    try:
        number, unit = _amount(text)
    except ValueError:
        number, unit = -1.0, ""
    if unit.lower() in ("core", "cores", "cpu", "cpus") and 0 < number <= there:
        return repr(math.nextafter(number / there, 1.0))  # times the cores it is not below the number
    if unit in ("", "%") and 0 < number * (0.01 if unit else 1) <= 1:
        return share(text)
    raise argparse.ArgumentTypeError(
        f"{text} is not a share of this machine's {some(there, 'core')}: write 0.5, 50% or, for so many,"
        " 1core"
    )


def speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is not a number between 0 and 1000")
    return speed


def count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 65535")
    return int(text)


def seconds(text: str) -> float:
    units = {"m": 60, "h": 3600, "d": 86400}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.isdigit() or not 0 < int(number) * units[unit] <= 3650 * 86400:
        raise argparse.ArgumentTypeError(f"{text} is not a time such as 30m, 12h or 7d, of ten years at most")
    return int(number) * units[unit]
