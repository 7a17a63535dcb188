"""Settings of what shows a run: the dashboard and a tracker of experiments."""

from __future__ import annotations

from typing import Literal

from swarm.settings.sections import Name, Port, Section, UrlPath


class Page(Section):
    """The dashboard of this peer."""

    host: Name = "127.0.0.1"
    """Address to serve it on: another one for a container or a proxy on another machine. It has no password:
    others reach it through a proxy that asks for one."""
    port: Port = 8080
    """TCP port; 0 takes a free one."""
    free: bool = True
    """Take the next free port where `port` is taken; otherwise that is an error, as containers need it."""
    hosts: tuple[str, ...] = ()
    """Host names, besides `host`, under which a browser may request the dashboard: that of a proxy in front
    of it."""
    path: UrlPath = ""
    """Path under which a proxy asks for the dashboard, such as `/swarm`, where the proxy does not take it
    off."""
    invite: bool = True
    """Show how to join: in a public run to all who see the dashboard, in a private one never without an
    invite for samplers. `false` for a dashboard that is only to be looked at."""


class Track(Section):
    """Figures of the run by version, for a tracker of experiments: kept by seeds and by those who watch."""

    to: Literal["none", "tensorboard", "trackio", "wandb"] = "none"
    """Where they go. wandb keeps them on this disk unless the environment says WANDB_MODE=online; trackio
    keeps them where TRACKIO_DIR says."""
    project: Name = "swarm"
    """Runs of one project are shown beside each other: a name for each series of experiments."""
