"""Settings of what shows a run: the dashboard, what it remembers, and a tracker of experiments."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from swarm.settings.sections import Count, Name, Port, Seconds, Section, UrlPath


class Page(Section):
    """The dashboard of this peer."""

    host: Name = "127.0.0.1"
    """Address to serve it on. It has no password: others reach it through a proxy that asks for one."""
    port: Port = 8080
    """TCP port; 0 takes a free one."""
    free: bool = True
    """Take the next free port where `port` is taken; otherwise that is an error."""
    hosts: tuple[str, ...] = ()
    """Host names, besides `host`, under which a browser may request the dashboard: that of a proxy in front
    of it."""
    path: UrlPath = ""
    """Path under which a proxy asks for the dashboard, such as `/swarm`, where the proxy does not take it
    off."""
    invite: bool = True
    """Show how to join: in a public run to everybody who sees the dashboard, in a private one never without
    an invite for samplers."""


class History(Section):
    """What the dashboard remembers: bounded, and kept in the run folder over restarts. Memory and the
    dashboard's snapshot grow with each number."""

    points: Count = 2000
    """Points of a curve; at the limit every second one is dropped, so that a long run keeps its shape."""
    events: Count = 1000
    """Sentences in the list of events."""
    peers: Count = 1000
    """Rows of peers; who left is dropped first, then strangers, then who was lost longest ago. While all are
    here, further samplers and observers get none."""
    samples: Count = 24
    """Groups that can be read."""
    releases: Count = 512
    """Releases whose spread is shown."""
    columns: Annotated[int, Meta(ge=2)] = 180
    """Columns of the map of lags; at the limit two are merged into one."""
    save: Seconds = 30.0
    """Seconds between two saves."""


class Track(Section):
    """Figures of the run by version, for a tracker of experiments: kept by seeds and by those who watch."""

    to: Literal["none", "tensorboard", "trackio", "wandb"] = "none"
    """Where they go. wandb keeps them on this disk unless the environment says WANDB_MODE=online; trackio
    keeps them where TRACKIO_DIR says."""
    project: Name = "swarm"
    """Runs of one project are shown beside each other."""
    name: str = ""
    """What the run is called there; empty: its name and the begin of its digest."""
