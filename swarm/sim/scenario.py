"""Scenarios: a TOML file with the peers, the prices of work, and the faults and their times. Typed and
closed.

In comes a file, out comes a Scenario. Durations of work and links are `DelayLaw`s in virtual seconds; rates
of peers' lines are `RateLaw`s in Mbit/s. Faults speak turmoil's vocabulary. Between two sides: `partition`,
`oneway` (what the first side sends is lost), `slow` (`seconds` more each way), and `repair` of these; `hold`
and `release`. Of a peer: `host` (it comes later), `crash` (for good), `bounce` (crash, and back after `down`
seconds), the two at a `step` of its next publication where one is named; `busy` (for `seconds` it takes no
calls); `full` (for `seconds` its disk takes no more); `clock` (`seconds` wrong from then on); `damage` to a
`file` of its folder. Peers are named `<role>-<number>`; a side is a list of names or shell patterns.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from random import Random
from typing import Literal

import msgspec

from swarm.frames.grammar import nearest
from swarm.limits import UNREADABLE
from swarm.net.rate import rate_of
from swarm.protocol import Kind, Role
from swarm.settings.config import Delay, DelayLaw, Run
from swarm.settings.peer_limits import Limits
from swarm.settings.sections import Count, Number, Part, Positive, Section, Share, Weight
from swarm.sim.flows import AccessLine

ROLES = tuple(role.value for role in Role if role is not Role.OBSERVER)
"""Roles that are simulated: an observer would have no viewer."""

SIMULATED = ("upload", "download")
"""Limits of a peer that are simulated."""

COUNTED = (Kind.LEARN, Kind.SAMPLE)
"""Kinds that may be priced by the group or the task."""

OF_DISK = ("full", "damage")
OF_PEER = ("host", "crash", "bounce", "busy", "clock", *OF_DISK)
BETWEEN = ("partition", "oneway", "slow", "repair", "hold", "release")
FAULTS = (*OF_PEER, *BETWEEN)

STEPS = ("packed", "patched", "announcing", "announced", "given")
"""Of a publication: the bytes are made, its patches are made, it is about to be announced, it is announced
and no caller has received any of it, one answer has been given."""

DAMAGES = ("cut", "flip", "empty", "delete")
"""One file, drawn among those that match, loses its end, has bits flipped, or is empty; or all are
deleted."""


class ScenarioError(ValueError):
    """The scenario cannot be simulated; the message gives the reason and a remedy."""


class SimulatedLinks(Section, frozen=True):
    latency: DelayLaw = DelayLaw(law="lognormal", seconds=0.05, shape=0.5, longest=2.0)
    bandwidth: float = 12.5e6
    """Bytes per second of one message's way: 100 Mbit/s."""


class RateLaw(Section, frozen=True):
    """How much a line carries in one direction."""

    mbit: Positive
    """Mbit/s, a million bits a second. constant: the rate; lognormal: the median."""
    law: Literal["constant", "lognormal"] = "constant"
    """`constant`, or `lognormal`: drawn once for each peer."""
    shape: Positive = 0.5
    """lognormal: sigma of the log."""
    least: Positive = 1.0
    """Mbit/s below which none is drawn."""
    most: Positive = 10_000.0
    """Mbit/s above which none is drawn."""

    def draw(self, rng: Random) -> float:
        """Bytes per second."""
        mbit = self.mbit
        if self.law == "lognormal":
            mbit = min(max(mbit * math.exp(self.shape * rng.gauss(0.0, 1.0)), self.least), self.most)
        return mbit * 1e6 / 8


class LineLaw(Section, frozen=True):
    """What connects each peer of a role with the others. A direction without a law carries all that is
    sent."""

    up: RateLaw | None = None
    down: RateLaw | None = None
    one_way: Share = 0.0
    """Part of the peers that cannot be dialled: they answer only peers that they called."""

    def draw(self, rng: Random) -> AccessLine:
        up, down = (law.draw(rng) if law is not None else math.inf for law in (self.up, self.down))
        return AccessLine(up, down)


class Bytes(Section, frozen=True):
    """Sizes of a large model's messages. The peers hold small ones in their place
    (swarm.sim.scaled_model)."""

    release: Positive
    """Bytes of a release, 2 for each trained value: a gradient has as many values."""
    patch: Part = 0.01
    """Share of a release that a patch from the version before has."""
    group: Number = 0
    """Bytes of a group; 0: those that the simulated one has."""
    blocks: Count = 64
    """Blocks of a release."""
    patch_blocks: Count = 16
    """Blocks of a patch."""
    begun: bool = False
    """Whether every peer has the first version from the start, as those have that took it from the Hub."""


class Fault(Section, frozen=True):
    at: Weight
    """Virtual seconds after the start."""
    fault: str
    """One of FAULTS."""
    peer: str = ""
    """The peer of a fault: `<role>-<number>`."""
    between: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The two sides of a link fault: names or patterns such as `sampler-*`."""
    down: Weight = 30.0
    """Seconds until a bounced peer is back."""
    step: str = ""
    """crash, bounce: not before this one of STEPS, when it comes within `crash_points.WAIT` seconds."""
    seconds: float = 0.0
    """slow: added to the time of each message; busy, full: how long; clock: shown beyond the time."""
    file: str = ""
    """damage: a pattern below the peer's folder, such as `checkpoint/*` or `**/*`."""
    how: str = "cut"
    """damage: one of DAMAGES."""


class Scenario(Section, frozen=True):
    name: str
    hours: float
    """Virtual time to simulate."""
    peers: dict[str, int]
    """Role -> how many."""
    seed: int = 1
    prices: dict[str, DelayLaw] = {}
    """Kind of work (swarm.protocol.Kind) -> its seconds, drawn anew each time; a kind without a
    price is free."""
    each: tuple[str, ...] = ()
    """Kinds whose price is that of one group (learn), one task (sample): a call costs it for each."""
    slower: dict[str, Positive] = {}
    """Pattern of peers' names -> by how much all their work takes longer."""
    links: SimulatedLinks = SimulatedLinks()
    lines: dict[str, LineLaw] = {}
    """Role -> its peers' lines. Messages above 4 KiB share them: those of a release, of groups, of an
    averaging round."""
    bytes: Bytes | None = None
    """Without it messages have the size of the simulated policy's."""
    limits: dict[str, Limits] = {}
    """Role -> its peers' limits on their lines, as `[peer.limits]` of a real peer (SIMULATED alone); here its
    groups keep to them as well."""
    delay: Delay = Delay()
    """Injected delays, as `[peer.delay]` of a real peer."""
    run: Run = Run()
    """As `[run]` of a real run."""
    faults: tuple[Fault, ...] = ()

    def line(self, role: Role, rng: Random) -> AccessLine | None:
        """The line of one peer; None where nothing bounds it."""
        law, limits = self.lines.get(role), self.limits.get(role)
        if law is None and limits is None:
            return None
        line, limits = (law or LineLaw()).draw(rng), limits or Limits()
        return AccessLine(min(line.up, rate_of(limits.upload)), min(line.down, rate_of(limits.download)))

    def slowness(self, name: str) -> float:
        """How many times as long as its price a peer's work takes."""
        return math.prod(times for pattern, times in self.slower.items() if fnmatchcase(name, pattern))

    def peer_names(self) -> list[str]:
        """Peers that are there at some time."""
        return [f"{role}-{k}" for role, count in self.peers.items() for k in range(count)]

    def names(self) -> list[str]:
        """Peers that are there from the start."""
        late = {fault.peer for fault in self.faults if fault.fault == "host"}
        return [name for name in self.peer_names() if name not in late]


def load(path: Path) -> Scenario:
    """Raises ScenarioError naming the file and the field."""
    try:
        return parse(path.read_bytes())
    except (OSError, ScenarioError) as error:
        raise ScenarioError(f"{path}: {error}") from error


def parse(text: bytes) -> Scenario:
    try:
        scenario = msgspec.toml.decode(text.removeprefix(codecs.BOM_UTF8), type=Scenario)
    except UNREADABLE as error:
        raise ScenarioError(f"not a scenario: {_describe(error)}") from error
    _check(scenario)
    return scenario


_KINDS = {
    "object": "a table",
    "array": "a list",
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
"""What msgspec calls a kind of value -> what settings call it."""

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*?)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_OTHER = re.compile(r"Expected `(.*?)`(.*?)(?:, got `(.*?)`)?(?: - at `\$\.?(.*)`)?", re.DOTALL)

_ENUM = re.compile(r"Invalid enum value (.*?) - at `\$\.?(.*)`", re.DOTALL)


def _describe(error: Exception) -> str:
    """msgspec's error, in words of a settings file."""
    if not isinstance(error, msgspec.ValidationError):
        return {
            UnicodeDecodeError: "it is not UTF-8 text",
            RecursionError: "its brackets are too deep",
        }.get(type(error), f"it is not TOML: {error}")
    if found := _UNKNOWN.fullmatch(str(error)):
        name, table = found[1], found[2] or ""
        if not table and name in ("extends", "peer"):
            return f"{name} is a setting of a run, which `swarm up` and `swarm start` take"
        close = "" if table.startswith("run") else nearest(name, _names())
        return f"there is no key {'.'.join(filter(None, (table, name)))}{close}"
    if found := _MISSING.fullmatch(str(error)):
        return f"the key {'.'.join(filter(None, (found[2], found[1])))} is missing"
    if found := _OTHER.fullmatch(str(error)):
        wanted, beyond, got, key = found.groups()
        kinds = " or ".join(_KINDS.get(kind, kind) for kind in wanted.split(" | ") if kind != "null")
        there = f", found {_KINDS.get(got, got)}" if got else ""
        for sign, words in ((">=", "of at least"), ("<=", "of at most"), (">", "above"), ("<", "below")):
            beyond = beyond.replace(f" {sign} ", f" {words} ")
        return f"{key or 'it'} wants {kinds}{beyond}{there}"
    if found := _ENUM.fullmatch(str(error)):
        return f"{found[2]} has no value {found[1]}"
    return str(error)


def _names() -> set[str]:
    """Of all keys of a scenario but for those of its run."""
    sections = (Scenario, SimulatedLinks, RateLaw, LineLaw, Bytes, Fault, Delay, DelayLaw, Limits)
    return {name for section in sections for name in section.__struct_fields__}


def role_of(name: str) -> Role:
    """The role in a peer's name."""
    return Role(name.rsplit("-", 1)[0])


def select(patterns: tuple[str, ...], names: list[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _check(scenario: Scenario) -> None:
    for where, number in _not_finite(msgspec.to_builtins(scenario)):
        raise ScenarioError(f"{where[1:]} = {number}: numbers of a scenario are finite")
    for role, count in scenario.peers.items():
        if role not in ROLES or count < 0:
            raise ScenarioError(
                f"peers.{role} = {count}: simulated roles are {', '.join(ROLES)}, counts are not negative"
            )
    if not scenario.hours > 0 or not scenario.links.bandwidth > 0:
        raise ScenarioError(
            f"hours = {scenario.hours} and links.bandwidth = {scenario.links.bandwidth} must be above 0"
        )
    _check_work(scenario)
    _check_lines(scenario)
    names = scenario.peer_names()
    for pattern in scenario.slower:
        if not select((pattern,), names):
            raise ScenarioError(f"slower.{pattern}: it names no peer")
    _check_faults(scenario, names)


def _not_finite(table: object, where: str = "") -> Iterator[tuple[str, float]]:
    """Numbers that are infinite or none, with their places in the file."""
    if isinstance(table, dict):
        for key, value in table.items():
            yield from _not_finite(value, f"{where}.{key}")
    elif isinstance(table, list | tuple):
        for k, value in enumerate(table):
            yield from _not_finite(value, f"{where}[{k}]")
    elif isinstance(table, float) and not math.isfinite(table):
        yield where, table


def _check_work(scenario: Scenario) -> None:
    kinds = [kind.value for kind in Kind]
    for table, words in (("prices", scenario.prices), ("each", scenario.each)):
        for word in words:
            if word not in kinds:
                known = f"known: {', '.join(kinds)}"
                raise ScenarioError(f"{table}: there is no work {word!r}{nearest(word, kinds)}; {known}")
    for word in scenario.each:
        if word not in COUNTED:
            raise ScenarioError(f"each: {word!r} has one price for a call; use {', '.join(COUNTED)}")


def _check_lines(scenario: Scenario) -> None:
    for role in (*scenario.lines, *scenario.limits):
        if role not in ROLES:
            table = "lines" if role in scenario.lines else "limits"
            raise ScenarioError(f"{table}.{role}: simulated roles are {', '.join(ROLES)}")
    for role, limits in scenario.limits.items():
        for name in Limits.__struct_fields__:
            if name not in SIMULATED and getattr(limits, name) != getattr(Limits(), name):
                raise ScenarioError(
                    f"limits.{role}.{name} is not simulated: leave it out; {' and '.join(SIMULATED)} are, and"
                    " [slower] names the peers whose work takes longer"
                )


def _check_faults(scenario: Scenario, names: list[str]) -> None:
    end = scenario.hours * 3600
    for fault in scenario.faults:
        if fault.fault not in FAULTS:
            raise ScenarioError(f"fault {fault.fault!r} at {fault.at}: use one of {', '.join(FAULTS)}")
        if fault.step not in ("", *STEPS) or fault.how not in DAMAGES:
            raise ScenarioError(
                f"{fault.fault} at {fault.at}: steps are {', '.join(STEPS)}, damages {', '.join(DAMAGES)}"
            )
        if fault.seconds < 0 and fault.fault != "clock":
            raise ScenarioError(
                f"{fault.fault} at {fault.at}: seconds = {fault.seconds}; only a clock's may be below 0"
            )
        if fault.fault == "damage" and not _is_below(fault.file):
            raise ScenarioError(
                f"damage at {fault.at}: file = {fault.file!r} is not a pattern below the peer's folder: write"
                " one such as checkpoint/* or **/*"
            )
        if fault.fault in OF_PEER:
            if fault.peer not in names:
                raise ScenarioError(
                    f"{fault.fault} at {fault.at}: there is no peer {fault.peer!r} among the counts of"
                    " [peers]"
                )
        elif not all(select(side, names) for side in fault.between):
            raise ScenarioError(f"{fault.fault} at {fault.at}: a side of `between` names no peer")
        if fault.at >= end:
            raise ScenarioError(
                f"{fault.fault} at {fault.at}: the scenario ends after {end:g} s (hours = {scenario.hours}):"
                " let it happen earlier, or give it more hours"
            )
    _check_ends(scenario.faults)


def _check_ends(faults: tuple[Fault, ...]) -> None:
    """A peer that crashed is gone, unless it is a `host` again."""
    crashed: dict[str, float] = {}
    for fault in sorted(faults, key=lambda fault: fault.at):
        if fault.fault == "crash":
            crashed[fault.peer] = fault.at
        elif fault.fault == "host":
            crashed.pop(fault.peer, None)
        elif fault.fault == "bounce" and fault.peer in crashed:
            raise ScenarioError(
                f"bounce at {fault.at}: {fault.peer} crashes at {crashed[fault.peer]} for good: write a"
                " `bounce` in place of the crash, with its `down`, or leave this one out"
            )


def _is_below(pattern: str) -> bool:
    """Whether it is a pattern that can only match below a folder."""
    parts = PurePath(pattern).parts
    return bool(parts) and not PurePath(pattern).is_absolute() and not any(map(_is_stray, parts))


def _is_stray(part: str) -> bool:
    return part == ".." or ("**" in part and part != "**")
