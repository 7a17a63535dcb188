"""Imports hivemind's packages without their `__init__`: p2p and DHT without torch, averaging without scipy.

    enter() -> bare packages `hivemind`, `hivemind.utils`, `hivemind.dht`, `hivemind.averaging` in sys.modules
            -> `import hivemind.p2p` finds its files

The `__init__` of hivemind's packages imports all of hivemind: optimizers, mixtures of experts, torch, scipy.
A bare package has the folder without the `__init__`; names that hivemind's own modules import from it are
looked up on access. `import swarm.net` enters. A program that imported hivemind before keeps what it has,
which is more. Not handled here: what a process imports besides.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from types import ModuleType

BARE = ("hivemind", "hivemind.utils", "hivemind.dht", "hivemind.averaging")
_HOMES = {
    "MSGPackSerializer": "serializer",
    "SerializerBase": "serializer",
    "TensorDescriptor": "tensor_descr",
    "amap_in_executor": "asyncio",
    "as_aiter": "asyncio",
    "get_dht_time": "timed_storage",
    "get_logger": "logging",
}
"""What the modules of hivemind that are used here import from hivemind.utils -> the submodule that defines
it."""


class _Bare(ModuleType):
    """A package without its `__init__`."""

    def __getattr__(self, name: str) -> object:
        if self.__name__ != "hivemind.utils" or name not in _HOMES:
            raise AttributeError(
                f"{self.__name__}.{name} is of hivemind's whole package: import hivemind before swarm.net"
            )
        return getattr(importlib.import_module(f"hivemind.utils.{_HOMES[name]}"), name)


def enter() -> None:
    """Prepare the imports, unless hivemind is imported already, or not installed."""
    if "hivemind" in sys.modules:
        return
    search = None
    for name in BARE:
        found = importlib.machinery.PathFinder.find_spec(name, search)
        if found is None or found.submodule_search_locations is None:
            return  # whoever imports it hears that it is missing
        search = list(found.submodule_search_locations) if name == "hivemind" else search
        package = sys.modules[name] = _Bare(name)
        package.__path__ = list(found.submodule_search_locations)
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        package.__spec__.submodule_search_locations = package.__path__
