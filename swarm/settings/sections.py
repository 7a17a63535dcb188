"""What a table of settings is made of: the closed section, and the ranges that its fields' types say.

Not handled here: which settings there are (swarm.settings.config), scenarios of the simulator
(swarm.sim.scenario).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0.0)]
Positive = Annotated[float, Meta(gt=0.0)]
Weight = Annotated[float, Meta(ge=0.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Part = Annotated[float, Meta(gt=0.0, le=1.0)]
Decay = Annotated[float, Meta(ge=0.0, lt=1.0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Name = Annotated[str, Meta(min_length=1)]

_RUN_NAME = "^[a-z0-9][a-z0-9._-]{0,39}$"
RunName = Annotated[str, Meta(pattern=_RUN_NAME)]
"""A run's name is part of folder names and of the delegations that the owner signs."""

SET_NAME = "[a-z0-9][a-z0-9_-]{0,23}"
_SET_NAME = f"^{SET_NAME}$"
SetName = Annotated[str, Meta(pattern=_SET_NAME)]
"""An evaluation set's name is part of keys, folders and names of curves."""

_PATH = "^(/[A-Za-z0-9._~-]+)*$"
UrlPath = Annotated[str, Meta(pattern=_PATH)]

_TIME = "([01]?[0-9]|2[0-3])(:[0-5][0-9])?"
_HOURS = f"^({_TIME}-{_TIME})?$"
Hours = Annotated[str, Meta(pattern=_HOURS)]
"""Local time from one hour of the day to another, over midnight too; empty: all day."""

_DATE = "^([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]))?$"
Date = Annotated[str, Meta(pattern=_DATE)]

PATTERNS = {
    _RUN_NAME: "1 to 40 lower-case letters, digits, dots, - and _, of which the first is a letter or a digit",
    _SET_NAME: "1 to 24 lower-case letters, digits, - and _, of which the first is a letter or a digit",
    _PATH: "a path such as /swarm: a slash before each part, none at the end",
    _DATE: "a date such as 2026-11-29, or nothing",
    _HOURS: "two times of the day such as 22-7 or 18:30-23, or nothing",
}
"""Pattern of a text -> what matches it, in words: every pattern of a setting is here."""


class Section(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A TOML table: unknown keys are refused."""
