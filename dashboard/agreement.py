"""Do the learners hold the same weights? By version: who showed which digest.

In come (version, learner, digest) as heartbeats and releases tell them; a later digest of a learner replaces its earlier one
(it snapped to the release). Versions that leave the window are only counted. A version shown by one learner proves nothing.
"""

from __future__ import annotations

from swarm.types import Digest, PeerId

WINDOW = 16
# Versions that are still compared: a learner further behind than this catches up by taking a release as it is.
HOLDERS = 64
# Learners compared per version.


class Agreement:
    def __init__(self) -> None:
        self._shown: dict[int, dict[PeerId, Digest]] = {}
        self._settled = {"same": 0, "different": 0}

    def show(self, version: int, learner: PeerId, digest: Digest) -> None:
        if not digest or (version not in self._shown and len(self._shown) >= WINDOW and version < min(self._shown)):
            return
        holders = self._shown.setdefault(version, {})
        if learner in holders or len(holders) < HOLDERS:
            holders[learner] = digest
        while len(self._shown) > WINDOW:
            self._count(self._shown.pop(min(self._shown)), self._settled)

    def view(self) -> dict[str, object]:
        """Compared versions in all, how many differed, and the newest one's digests."""
        total = dict(self._settled)
        for holders in self._shown.values():
            self._count(holders, total)
        compared = [version for version, holders in self._shown.items() if len(holders) > 1]
        newest = max(compared, default=None)
        digests = sorted({digest[:12] for digest in self._shown[newest].values()}) if newest is not None else []
        return {
            "same": total["same"], "different": total["different"], "version": newest, "digests": digests,
            "learners": len(self._shown[newest]) if newest is not None else 0,
        }  # fmt: skip

    @staticmethod
    def _count(holders: dict[PeerId, Digest], into: dict[str, int]) -> None:
        if len(holders) > 1:
            into["same" if len(set(holders.values())) == 1 else "different"] += 1
