"""Imports hivemind's p2p and DHT parts without torch, for observers.

    enter() -> bare packages `hivemind`, `hivemind.utils`, `hivemind.dht` in sys.modules
            -> `import hivemind.p2p` finds its files

The `__init__` of hivemind's packages imports modules that import torch. A bare package has the folder without
the `__init__`; names that hivemind's own modules import from `hivemind.utils` are looked up on access.
Invariant: a process is without torch, or not, as long as it runs. Not handled here: which code runs without
torch (swarm.net.children).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

BARE = ("hivemind", "hivemind.utils", "hivemind.dht")
_HOMES = {
    "MSGPackSerializer": "serializer",
    "SerializerBase": "serializer",
    "get_logger": "logging",
    "get_dht_time": "timed_storage",
}
"""What hivemind.p2p and hivemind.dht import from hivemind.utils -> the submodule that defines it."""


class _Bare(ModuleType):
    """A package without its `__init__`."""

    def __getattr__(self, name: str) -> object:
        if self.__name__ != "hivemind.utils" or name not in _HOMES:
            raise AttributeError(
                f"{self.__name__}.{name} needs torch, and this process joined a swarm without it"
            )
        return getattr(importlib.import_module(f"hivemind.utils.{_HOMES[name]}"), name)


def enter() -> None:
    """Prepare the imports, before anything imports hivemind. Raises RuntimeError when hivemind is imported
    already."""
    if slim():
        return
    if "hivemind" in sys.modules:
        raise RuntimeError("this process has imported hivemind whole: it cannot be without torch any more")
    search = None
    for name in BARE:
        found = importlib.machinery.PathFinder.find_spec(name, search)
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
        search = list(found.submodule_search_locations) if name == "hivemind" else search
        package = sys.modules[name] = _Bare(name)
        package.__path__ = list(found.submodule_search_locations)
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        package.__spec__.submodule_search_locations = package.__path__


def slim() -> bool:
    """Whether this process has hivemind without torch."""
    return isinstance(sys.modules.get("hivemind"), _Bare)
