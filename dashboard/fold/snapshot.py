"""Saves a SwarmState as bytes and loads it, for a restart and for observers that join late.

The parts of a SwarmState are typed structs, encoded with msgpack and compressed with zstd. `load` accepts
bytes of strangers: it checks sizes before anything is decoded or allocated, types while decoding, and then
clips every part to the bounds that a fold keeps. Afterwards `fold` continues as if it had never stopped. Not
saved: the last minutes, which dashboard.diagnosis reads; a few minutes fill them again.
"""

from __future__ import annotations

import msgspec

from dashboard.fold.bounds import BOUNDS, Bounds
from dashboard.fold.parts import pulse
from dashboard.fold.parts.agreement import VersionDigests
from dashboard.fold.parts.evaluations import Evaluations
from dashboard.fold.parts.flows import PeerFlows
from dashboard.fold.parts.heat import Heat
from dashboard.fold.parts.incidents import Incidents
from dashboard.fold.parts.lines import Lines
from dashboard.fold.parts.rounds import LearnerRounds, members
from dashboard.fold.parts.samples import Samples
from dashboard.fold.parts.series import Series
from dashboard.fold.parts.spread import KEPT, Spreads
from dashboard.fold.parts.tally import VerdictTally
from dashboard.fold.peer import PeerRow
from dashboard.fold.state import CURVES, SwarmState, curve_name
from dashboard.fold.timeline import Timeline
from dashboard.text import LARGEST, number, proper, whole
from swarm.frames.compression import CompressionError, Zstd
from swarm.limits import UNREADABLE
from swarm.settings.config import Run
from swarm.types import PeerId, Release

FORM = 1
"""Version of the format: another one is not read."""

LARGEST_DUMP = 64 << 20
"""Most bytes when unpacked: ten times a SwarmState whose containers are all full."""

GROWS, SMALLEST = 64, 1 << 20
"""Highest ratio of unpacked to packed bytes, and unpacked bytes that are always allowed. Real states grow
four to eight times. One byte may become an object of sixty: a stranger's few kilobytes must not become a
gigabyte here."""

COARSEST = 64
"""Least points of a curve that is thinned to save space: fewer would not show its shape."""

LEVEL = 3
"""Compression level of zstd: a state of 500 peers packs in tens of milliseconds."""


class SnapshotError(ValueError):
    """These bytes are no valid SwarmState; the message says why."""


class SavedState(msgspec.Struct, kw_only=True):
    """The saved parts of a SwarmState, under the same field names."""

    form: int = FORM
    revision: int
    timeline: Timeline
    peers: list[PeerRow]
    releases: list[Release]
    accuracies: dict[str, tuple[int, float]]
    series: dict[str, Series]
    pulse: pulse.Pulse
    agreement: VersionDigests
    tally: VerdictTally
    rounds: LearnerRounds
    flows: PeerFlows
    spreads: Spreads
    heat: Heat
    lines: Lines
    incidents: Incidents = msgspec.field(default_factory=Incidents)
    evaluations: Evaluations = msgspec.field(default_factory=Evaluations)
    samples: Samples
    members: tuple[PeerId, ...]


_PARTS = (
    "timeline",
    "pulse",
    "agreement",
    "tally",
    "rounds",
    "flows",
    "spreads",
    "heat",
    "lines",
    "samples",
    "incidents",
    "evaluations",
)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SavedState)


def dump(state: SwarmState, limit: int | None = None) -> bytes:
    """Save a SwarmState in at most `limit` bytes: curves are thinned first, then the oldest groups,
    incidents, sentences, lags and releases are left out."""
    kept = _keep(state)
    packed = _pack(kept)
    if limit is not None and len(packed) > limit:
        kept = _decoder.decode(_encoder.encode(kept))  # the state's own parts stay as they are
        while len(packed) > limit:
            if not _shrink(kept):
                raise SnapshotError(
                    f"a state of {len(packed)} bytes cannot be made to fit {limit}: give it more room"
                )
            packed = _pack(kept)
    return packed


def load(
    data: bytes, run: Run | None = None, now: float | None = None, bounds: Bounds = BOUNDS
) -> SwarmState:
    """Load a SwarmState. Raises SnapshotError when the bytes are no valid one.

    With `now`, the loader's clock counts from here on: later time stamps in the SwarmState come from a wrong
    clock.
    """
    try:
        kept = _decoder.decode(_unpack(data))
    except UNREADABLE as error:
        raise SnapshotError(f"this is no kept state: {error}; it is built again from new events") from error
    if kept.form != FORM:
        raise SnapshotError(f"this state is kept in form {kept.form}, this program reads form {FORM}")
    state = SwarmState(run, bounds)
    _mend(kept, bounds)
    state.revision = state.reset = kept.revision
    for name in _PARTS:
        setattr(state, name, getattr(kept, name))
    state.peers = {peer.id: peer for peer in kept.peers}
    state.releases = {release.version: release for release in kept.releases}
    state.accuracies, state.series, state.members = kept.accuracies, kept.series, kept.members
    if now is not None:
        _begin(state, now)
    return state


def _begin(state: SwarmState, now: float) -> None:
    """Continue with the loader's clock, which shows `now`."""
    state.timeline.begin(now)
    state.pulse.begin(now)
    for peer in state.peers.values():
        peer.heard, peer.timed = min(peer.heard, now), min(peer.timed, now)
    for curve in state.series.values():
        if curve.by == "time":
            curve.cut(int(now) + pulse.SLOT)


def _keep(state: SwarmState) -> SavedState:
    parts = {name: getattr(state, name) for name in _PARTS}
    return SavedState(
        revision=state.revision,
        peers=list(state.peers.values()),
        releases=list(state.releases.values()),
        accuracies=state.accuracies,
        series=state.series,
        members=state.members,
        **parts,
    )


def _pack(kept: SavedState) -> bytes:
    return Zstd(LEVEL).deflate(_encoder.encode(kept))


def _unpack(data: bytes) -> bytes:
    """Raises SnapshotError for more bytes than a state of this size has."""
    try:
        return Zstd().inflate(data, 1, min(LARGEST_DUMP, SMALLEST + GROWS * len(data)))
    except CompressionError as error:
        raise SnapshotError(f"no state of {len(data)} bytes: {error}") from error


def _shrink(kept: SavedState) -> bool:
    """Make the SwarmState smaller by its least important part. False when nothing is left to drop."""
    longest = max((len(curve.xs) for curve in kept.series.values()), default=0)
    if longest > COARSEST:
        for curve in kept.series.values():
            if len(curve.xs) > longest // 2:
                curve.thin()
    elif oldest := kept.samples.kept or kept.incidents.kept or kept.lines.kept:
        del oldest[: len(oldest) // 2 + 1]
    elif kept.heat.rows:
        kept.heat.rows = {}
    elif len(kept.releases) > KEPT:
        kept.releases = sorted(kept.releases, key=lambda release: release.version)[-KEPT:]
    else:
        return False
    return True


def _mend(kept: SavedState, bounds: Bounds) -> None:
    """Clip and clean every part to the bounds that a fold keeps."""
    kept.revision = whole(kept.revision)
    kept.peers = [peer for peer in kept.peers[-bounds.peers :] if peer.sanitize()]
    for peer in kept.peers:
        peer.revision = min(whole(peer.revision), kept.revision)
    sane = (
        release for release in kept.releases if 0 <= release.version < LARGEST and proper(release.publisher)
    )
    known = {release.version: release for release in sane}
    kept.releases = [known[version] for version in sorted(known)[-bounds.releases :]]
    kept.accuracies = {
        when: (whole(version), number(accuracy, high=1.0))
        for when, (version, accuracy) in kept.accuracies.items()
        if when in ("first", "last")
    }
    curves = {
        name: curve
        for name, curve in kept.series.items()
        if curve_name(name) and curve.sanitize(bounds.points)
    }
    kept.series = dict(list(curves.items())[: CURVES + len(pulse.NAMES)])
    kept.members = members(kept.members)
    for part in (kept.timeline, kept.pulse, kept.agreement, kept.tally, kept.rounds, kept.flows):
        part.sanitize()
    kept.spreads.sanitize(bounds.peers)
    kept.heat.sanitize(bounds.columns, bounds.peers)
    kept.lines.sanitize(bounds.events)
    kept.incidents.sanitize()
    kept.evaluations.sanitize()
    kept.samples.sanitize(bounds.samples)
