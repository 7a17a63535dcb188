"""The heat map of lags: how many versions each peer was behind, by slots of time.

Takes (peer, lag in versions, time) and keeps the largest lag of each peer in each slot. A full map merges its
slots in pairs, so that a bounded number of columns covers any length of time.
"""

from __future__ import annotations

import msgspec

from dashboard.text import moment, number, proper
from dashboard.views import HeatView

SLOT = 5.0
"""Seconds of a column at first: two heartbeats."""

NOTHING = -1
GREATEST = 2**31
"""Versions; larger claims are clipped."""


class Heat(msgspec.Struct):
    columns: int = 180
    slot: float = SLOT
    start: float = 0.0
    rows: dict[str, list[int]] = {}
    """Peer -> lag by column, NOTHING where it is unknown."""

    def take(self, peer: str, lag: int, at: float) -> None:
        if not self.rows or at < self.start:
            self.rows, self.slot, self.start = {}, SLOT, at - at % SLOT
        column = int((at - self.start) / self.slot)
        while column >= self.columns:
            self._merge()
            column = int((at - self.start) / self.slot)
        row = self.rows.setdefault(peer, [])
        if column >= len(row):
            row += [NOTHING] * (column + 1 - len(row))
        if lag > row[column]:
            row[column] = min(lag, GREATEST)

    def drop(self, peer: str) -> None:
        self.rows.pop(peer, None)

    def view(self) -> HeatView:
        rows = {peer: tuple(lag if lag >= 0 else None for lag in row) for peer, row in self.rows.items()}
        used = max(map(len, self.rows.values()), default=0)
        return HeatView(slot=self.slot, start=self.start, columns=used, rows=rows)

    def sanitize(self, columns: int, peers: int) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        self.slot, self.start, self.columns = number(self.slot, SLOT, 1e12), moment(self.start), columns
        self.rows = {peer: row for peer, row in list(self.rows.items())[:peers] if proper(peer)}
        for row in self.rows.values():
            row[:] = [min(max(lag, NOTHING), GREATEST) for lag in row]
        while max(map(len, self.rows.values()), default=0) > columns:
            self._merge()

    def _merge(self) -> None:
        self.slot *= 2
        for row in self.rows.values():
            row[:] = [max(row[place : place + 2]) for place in range(0, len(row), 2)]
