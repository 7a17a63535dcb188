"""Imports transformers without what is not used of it here, which is half of its processor time.

    import swarm.learn --begin()--> a finder, which waits for the first `import transformers`; there are then

    no scipy                     which losses of object detection want
    no torch.distributed.tensor  which models that transformers splits want; swarm.learn.fsdp splits its own
    no continuous batching       which serves many users from one model
    torch's compilers            only where a mask is made by tracing, or something is compiled
                                 (no_compilers() around what makes a model: torch imports them to draw
                                 values on the meta device)
    the list of its modules      from a file: transformers reads its thousands of files at each start

All else is as it is. A program that imported transformers before keeps what it has. Not handled here: torch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import platformdirs

from swarm.storage.durable import write_durably

NOT_USED = ("is_scipy_available", "is_torch_distributed_available")
"""Questions of transformers about its environment that are answered with no."""

BATCHING = "transformers.generation.continuous_batching"
COMPILED = {
    "transformers.masking_utils",
    "transformers.integrations.deepgemm",
    "transformers.integrations.finegrained_fp8",
    "transformers.integrations.sonicmoe",
}
"""Modules that import torch's compilers for what is said to these alone."""

TRACED = "torch._dynamo._trace_wrapped_higher_order_op"
"""The module of one context manager; the package above it imports compilers."""

Structure = dict[frozenset[str], dict[str, set[str]]]
"""What has to be installed -> module -> its names."""


def begin() -> None:
    """Wait for the first import of transformers, unless it has been."""
    if "transformers" not in sys.modules and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "transformers" and (found := PathFinder.find_spec(name, path)) is not None:
            _prepare(found)
        if name in COMPILED and "torch._dynamo" not in sys.modules:
            found = PathFinder.find_spec(name, path)
            if found is not None and found.loader is not None:
                found.loader = _WithoutCompilers(found.loader)
            return found
        return None


def _prepare(found: ModuleSpec) -> None:
    """What transformers asks before it imports more, answered."""
    bare = sys.modules["transformers"] = ModuleType("transformers")
    bare.__path__, bare.__spec__ = list(found.submodule_search_locations or ()), found
    vars(bare)["__version__"] = version("transformers")
    try:
        places = [importlib.import_module(f"transformers.utils{part}") for part in (".import_utils", "")]
    except ImportError:  # a version that is built otherwise is imported whole
        places = []
        for name in [name for name in sys.modules if name.startswith("transformers.")]:
            del sys.modules[name]
    finally:
        del sys.modules["transformers"]
    for place in places:
        _answer(place)
    if places:
        _put_compilers_off()
        _stand_in(BATCHING, __path__=[], PagedAttentionCache=_NoCache, ContinuousMixin=_NoMixin)
        _stand_in(f"{BATCHING}.cache", PagedAttentionCache=_NoCache)


def _answer(place: Any) -> None:
    for question in NOT_USED:
        setattr(place, question, lambda: False)
    if hasattr(place, "define_import_structure"):
        place.define_import_structure = _kept(place.define_import_structure)


def _put_compilers_off() -> None:
    import torch

    for said in ("allow_in_graph", "assume_constant_result", "disable"):
        setattr(torch.compiler, said, _later(getattr(torch.compiler, said)))


class _NoCache:
    """Nothing is an instance of it."""


class _NoMixin:
    """Adds nothing to GenerationMixin."""


class _WithoutCompilers(Loader):
    """Loads a module before torch's compilers are imported."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with no_compilers():
            self._inner.exec_module(module)


class _StandIn(ModuleType):
    """For a module that is not imported yet."""


class _Compilers(_StandIn):
    """For torch's, until something is asked of them that is no word about a function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        _forget_stand_ins()
        return getattr(importlib.import_module("torch._dynamo"), name)


@contextmanager
def no_compilers() -> Iterator[None]:
    """In here what is said to torch's compilers about functions is lost, and does not import them: three
    seconds of a processor."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    said = dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), _itself)
    _stand_in("torch._dynamo", _Compilers, **said)
    _stand_in(TRACED, _StandIn, TransformGetItemToIndex=_traced)
    try:
        yield
    finally:
        _forget_stand_ins()


def _forget_stand_ins() -> None:
    for name in ("torch._dynamo", TRACED):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def _later(tell: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that tells torch's compilers about a function, once these are imported."""

    def decorate(function: Any = None, **how: Any) -> Any:
        if "torch._dynamo" in sys.modules:
            return tell(function, **how)
        return _itself(function)

    return decorate


def _itself(function: Any = None, *how: Any, **more: Any) -> Any:
    return function if function is not None else _itself


def _traced() -> Any:
    """TransformGetItemToIndex(), for a mask that is made by tracing."""
    return importlib.import_module(TRACED).TransformGetItemToIndex()


def _stand_in(name: str, kind: type[ModuleType] = ModuleType, **names: object) -> None:
    module = sys.modules[name] = kind(name)
    module.__spec__ = ModuleSpec(name, None, is_package="__path__" in names)
    vars(module).update(names)


def _kept(read: Callable[..., Structure]) -> Callable[..., Structure]:
    """The list of transformers' modules, as `read` finds it, from this user's cache where it is there."""

    def structure(path: str | Path, prefix: str | None = None) -> Structure:
        if prefix is None:
            return read(path, prefix)
        folder = platformdirs.user_cache_path("swarm")
        changed = Path(path).stat().st_mtime_ns
        file = folder / f"transformers-{version('transformers')}-{changed}-{prefix}.json"
        with contextlib.suppress(OSError, ValueError, TypeError):  # it is not there, or not whole
            return {
                frozenset(needs): {module: set(names) for module, names in modules.items()}
                for needs, modules in json.loads(file.read_text())
            }
        found = read(path, prefix)
        rows = [
            [sorted(needs), {module: sorted(names) for module, names in modules.items()}]
            for needs, modules in found.items()
        ]
        with contextlib.suppress(OSError):  # it is read again at the next start
            write_durably(file, json.dumps(rows).encode())
        return found

    return structure
