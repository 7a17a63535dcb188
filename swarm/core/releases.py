"""Which release is the truth.

The highest version wins. Two releases of one version (two parts of a split swarm, or a publisher and its stand-in) are settled
by the same rule everywhere: more groups, then more learners, then the smaller digest, so that all peers end at the same bytes.
"""

from __future__ import annotations

from swarm.types import Release


def rank(release: Release) -> tuple[int, int, int, tuple[int, ...]]:
    """Greater is better. The digest is negated letter by letter so that the smaller one ranks higher, whatever a peer wrote."""
    return (release.version, release.groups, release.learners, tuple(-ord(letter) for letter in release.weights))


class Releases:
    """The newest releases a peer has heard of."""

    def __init__(self, keep: int = 64) -> None:
        self._keep = keep
        self._best: dict[int, Release] = {}

    @property
    def newest(self) -> Release | None:
        return self._best[max(self._best)] if self._best else None

    def of(self, version: int) -> Release | None:
        return self._best.get(version)

    def hear(self, release: Release) -> bool:
        """True when it is now the best of its version and news."""
        known = self._best.get(release.version)
        if known is not None and rank(known) >= rank(release):
            return False
        self._best[release.version] = release
        for version in sorted(self._best)[: -self._keep]:
            del self._best[version]
        return release.version in self._best

    def forget(self, release: Release) -> None:
        """Nobody has its bytes: it is as if it had never been announced. A later announcement of it counts again."""
        if self._best.get(release.version) == release:
            del self._best[release.version]


def publishers(members: list[tuple[int, str]]) -> list[str]:
    """The order in which a round's members publish: (incarnation, peer id), oldest first, each after the one before was silent.

    The oldest member has the best-warmed optimizer, so its weights become the release.
    """
    return [peer for _, peer in sorted(members)]
