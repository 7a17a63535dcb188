"""Imports hivemind's packages without their `__init__`: p2p and DHT without torch, averaging without scipy.

    enter() -> a finder: `hivemind`, `hivemind.utils`, `hivemind.dht`, `hivemind.averaging` are bare packages
            -> `import hivemind.p2p` finds its files

The `__init__` of hivemind's packages imports all of hivemind: optimizers, mixtures of experts, torch, scipy.
A bare package has the folder without the `__init__`; names that hivemind's own modules import from it are
looked up on access. `import swarm.net` enters. A program that imported hivemind before keeps the full
packages. Not handled here: other imports of a process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
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
"""Name that a module of hivemind in use here imports from hivemind.utils -> the submodule that defines it."""


class _Bare(ModuleType):
    """A package without its `__init__`."""

    def __getattr__(self, name: str) -> object:
        if self.__name__ != "hivemind.utils" or name not in _HOMES:
            raise AttributeError(
                f"{self.__name__}.{name} is of hivemind's whole package: import hivemind before swarm.net"
            )
        return getattr(importlib.import_module(f"hivemind.utils.{_HOMES[name]}"), name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in BARE or (found := PathFinder.find_spec(name, path)) is None:
            return None
        spec = ModuleSpec(name, self, origin=found.origin, is_package=True)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Bare(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Its `__init__` is left out."""


def enter() -> None:
    """Find these packages so from now on, unless hivemind is imported already."""
    if "hivemind" not in sys.modules:
        sys.meta_path.insert(0, _Finder())
