"""Flows of bytes between peers, as the receivers counted them.

Takes Transferred events (a receiver's counts by purpose and sender, over some seconds), and shows the rates
of flows that are still reported, and totals by purpose. A rate that is not reported again for three periods
is dropped. Senders' counts are not used, since each transfer would be counted twice. Learners that averaged
without reporting bytes have flows of gradients without a rate.
"""

from __future__ import annotations

import heapq
from typing import Literal, get_args

import msgspec

from dashboard.text import count, moment, number, proper, whole
from dashboard.views import FlowView, TrafficView
from swarm import events as happened

Purpose = Literal["rollouts", "weights", "gradients", "other"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
COUNTED = (*PURPOSES, "gossip")
MOST = 100
"""Flows that are drawn: more cannot be distinguished, and each view carries all of them."""

LINKS = 64
"""Most senders in one report."""

RECEIVERS = 1000
PATIENCE = 3
"""Periods without a report after which a rate is dropped: one report may be lost."""

SHORTEST, LONGEST, UNKNOWN = 1.0, 60.0, 5.0
"""Seconds of a reporting period: the bounds of a report's claim, and the period assumed for an averaging
round."""

ALL_TO_ALL = 8
"""Most learners of a round that are drawn with a flow between every two; more are drawn as a ring."""


class FlowReport(msgspec.Struct):
    """A flow's last report."""

    source: str
    target: str
    purpose: Purpose
    rate: float
    relayed: bool
    until: float
    """When the flow ends without another report."""


class Receiver(msgspec.Struct):
    rates: dict[str, float]
    until: float


class PeerFlows(msgspec.Struct):
    streams: dict[str, FlowReport] = {}
    receivers: dict[str, Receiver] = {}
    total: dict[str, int] = {}

    def take(self, event: happened.Transferred, now: float) -> None:
        seconds = number(event.seconds, SHORTEST, LONGEST)
        until = now + PATIENCE * seconds
        received = {
            purpose: whole(event.received[purpose]) for purpose in COUNTED if event.received.get(purpose)
        }
        count(self.total, received)
        self.receivers.pop(event.peer, None)
        self.receivers[event.peer] = Receiver(
            {purpose: size / seconds for purpose, size in received.items()}, until
        )
        if len(self.receivers) > RECEIVERS:
            del self.receivers[next(iter(self.receivers))]
        links = heapq.nlargest(LINKS, event.links.items(), key=lambda link: sum(link[1].received.values()))
        for source, link in links:
            if source == event.peer or not proper(source):
                continue
            for purpose in PURPOSES:
                if size := whole(link.received.get(purpose, 0)):
                    self._keep(
                        FlowReport(source, event.peer, purpose, size / seconds, link.relayed, until), now
                    )

    def averaged(self, members: tuple[str, ...], now: float) -> None:
        """Record a round's flows of gradients, whose bytes are unknown."""
        if len(members) <= ALL_TO_ALL:
            pairs = [(source, target) for source in members for target in members if source != target]
        else:
            pairs = list(zip(members, (*members[1:], members[0]), strict=True))
        for source, target in pairs:
            known = self.streams.get(_key(source, target, "gradients"))
            if known is None or not known.rate or known.until < now:
                self._keep(FlowReport(source, target, "gradients", 0.0, False, now + PATIENCE * UNKNOWN), now)

    def view(self, now: float) -> tuple[FlowView, ...]:
        """The largest flows."""
        live = heapq.nlargest(
            MOST, (stream for stream in self.streams.values() if stream.until >= now), key=_size
        )
        return tuple(
            FlowView(
                source=stream.source,
                target=stream.target,
                purpose=stream.purpose,
                rate=stream.rate,
                relayed=stream.relayed,
            )
            for stream in live
        )

    def traffic(self, now: float) -> TrafficView:
        rate: dict[str, float] = {}
        for receiver in self.receivers.values():
            if receiver.until >= now:
                for purpose, bytes_per_second in receiver.rates.items():
                    rate[purpose] = rate.get(purpose, 0.0) + bytes_per_second
        return TrafficView(total={purpose: float(size) for purpose, size in self.total.items()}, rate=rate)

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        self.total = {purpose: whole(self.total[purpose]) for purpose in COUNTED if purpose in self.total}
        self.receivers = {
            peer: receiver for peer, receiver in list(self.receivers.items())[:RECEIVERS] if proper(peer)
        }
        for receiver in self.receivers.values():
            receiver.until = moment(receiver.until)
            receiver.rates = {
                purpose: number(receiver.rates[purpose]) for purpose in COUNTED if purpose in receiver.rates
            }
        kept = [
            stream for stream in self.streams.values() if proper(stream.source) and proper(stream.target)
        ][: 2 * MOST]
        self.streams = {_key(stream.source, stream.target, stream.purpose): stream for stream in kept}
        for stream in kept:
            stream.rate, stream.until = number(stream.rate), moment(stream.until)

    def _keep(self, stream: FlowReport, now: float) -> None:
        self.streams[_key(stream.source, stream.target, stream.purpose)] = stream
        if len(self.streams) > 2 * MOST:
            live = heapq.nlargest(
                MOST, self.streams.items(), key=lambda entry: (entry[1].until >= now, *_size(entry[1]))
            )
            self.streams = dict(live)


def _size(stream: FlowReport) -> tuple[float, str, str, str]:
    return stream.rate, stream.source, stream.target, stream.purpose


def _key(source: str, target: str, purpose: str) -> str:
    return f"{source} {target} {purpose}"
