"""The last evaluation, with its interval."""

from __future__ import annotations

import msgspec

from dashboard.text import number, whole
from dashboard.views import EvaluationView
from swarm import events as happened
from swarm.core import intervals


class Evaluations(msgspec.Struct):
    last: EvaluationView | None = None
    """That of the newest version."""

    def take(self, event: happened.Evaluated) -> None:
        found = _view(event.version, event.accuracy, event.tasks)
        if self.last is None or found.version >= self.last.version:
            self.last = found

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        if self.last is not None:
            self.last = _view(self.last.version, self.last.accuracy, self.last.tasks)


def _view(version: float, accuracy: float, tasks: float) -> EvaluationView:
    share, count = float(number(accuracy, high=1.0)), whole(tasks)
    low, high = intervals.of_share(share, count)
    return EvaluationView(version=whole(version), accuracy=share, low=low, high=high, tasks=count)
