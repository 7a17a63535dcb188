"""Whether the learners hold the same weights: for each version, each learner's digest.

Takes (version, learner, digest) from heartbeats and releases; a later digest of a learner replaces its
earlier one (it snapped to the release). Versions that leave the window are only counted. A version with one
learner's digest is not compared.
"""

from __future__ import annotations

import msgspec

from dashboard.text import clean, whole
from dashboard.views import AgreementView
from swarm.types import Digest, PeerId

WINDOW = 16
"""Newest versions that are compared: a learner further behind loads a release, and so has its digest."""

HOLDERS = 64
"""Most learners compared for each version."""


class VersionDigests(msgspec.Struct):
    shown: dict[int, dict[PeerId, Digest]] = {}
    same: int = 0
    """Compared versions that left the window, whose learners agreed."""
    different: int = 0

    def show(self, version: int, learner: PeerId, digest: Digest) -> None:
        if not digest or (
            version not in self.shown and len(self.shown) >= WINDOW and version < min(self.shown)
        ):
            return
        holders = self.shown.setdefault(whole(version), {})
        if learner in holders or len(holders) < HOLDERS:
            holders[learner] = Digest(digest[:64])
        while len(self.shown) > WINDOW:
            agreed = _agreed(self.shown.pop(min(self.shown)))
            self.same, self.different = self.same + (agreed is True), self.different + (agreed is False)

    def view(self) -> AgreementView:
        """Numbers of versions with equal and with different digests, and the newest version's digests."""
        compared = {
            version: agreed
            for version, holders in self.shown.items()
            if (agreed := _agreed(holders)) is not None
        }
        newest = max(compared, default=None)
        holders = self.shown[newest] if newest is not None else {}
        same = sum(compared.values())
        return AgreementView(
            same=self.same + same,
            different=self.different + len(compared) - same,
            version=newest,
            digests=tuple(sorted({clean(digest[:12]) for digest in holders.values()})),
            learners=len(holders),
        )

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        shown, self.shown = self.shown, {}
        self.same, self.different = whole(self.same), whole(self.different)
        for version in sorted(shown):
            for learner, digest in list(shown[version].items())[:HOLDERS]:
                self.show(version, PeerId(learner[:80]), digest)


def _agreed(holders: dict[PeerId, Digest]) -> bool | None:
    return len(set(holders.values())) == 1 if len(holders) > 1 else None
