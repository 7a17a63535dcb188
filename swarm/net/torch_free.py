"""hivemind without torch, for a peer that only watches: its p2p and DHT halves, imported past what its
packages import.

    enter() -> bare packages `hivemind`, `hivemind.utils`, `hivemind.dht` in sys.modules
            -> `import hivemind.p2p` finds its files

A package's `__init__` names all that it has, and in hivemind that ends at torch. A bare package has the
folder and not the `__init__`; names of submodules that hivemind's own modules take from `hivemind.utils` are
looked up when they are asked for. Invariant: a process is free of torch, or not, for its whole life. Not
handled here: which code runs without torch (swarm.net.children).
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
