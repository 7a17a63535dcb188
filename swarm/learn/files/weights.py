"""Weights of a policy as the bytes of a release: bf16 safetensors, the same bytes on every peer.

Names are sorted, tied weights are written once (under their last name, which is the embedding's and not the
head's, as in the files that transformers and vLLM read), every float becomes bfloat16. The release of a
module with an adapter (peft's) is the adapter alone, under the names that peft uses in files. Everything that
is read is checked: the header, then names, types, shapes and values, before anything of the module changes.
Bytes are read and written in pieces (swarm.learn.files.release_file): a release takes no second copy of the
model.

    module --write--> a draft --done--> Blocks          Blocks --Loader, load_into--> module
                              while the module trains on

A learner's float32 master holds 16 bits more than a release, and at a real learning rate the steps of many
versions change only these. So a master whose bf16 rounding is the released value keeps its own value
(`follow`); otherwise every release that a learner loads would undo its training. Not handled here: patches
between versions, compression.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from swarm.learn.files.release_file import Contents, ReleaseFile, header, values
from swarm.storage.blocks import Blocks, Damaged
from swarm.storage.image import Draft, MakeDraft
from swarm.storage.weights import Weights

ADAPTER = "default"
"""peft's name for an unnamed adapter; part of its parameters' names in a module, not in a file."""

Shape: TypeAlias = tuple[int, ...]

Put: TypeAlias = Callable[[nn.Module, ReleaseFile, Collection[str]], None]
"""Sets these tensors of a module to a release's, or raises ValueError with nothing changed."""


def release_bytes(module: nn.Module) -> bytes:
    """The module's release: bf16 safetensors of all its weights, or of its adapter alone."""
    return to_bytes(state(module))


def state(module: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor of the release of this module: all weights, or its adapter's alone. These are the
    module's own tensors, in their shapes and dtypes."""
    if not hasattr(module, "peft_config"):
        return module.state_dict()
    return {
        name.replace(f".{ADAPTER}.", "."): value
        for name, value in module.named_parameters()
        if f".{ADAPTER}." in name
    }


def to_bytes(state: Mapping[str, Tensor]) -> bytes:
    """The bytes of a release: bf16 safetensors, names sorted, tied tensors once. `state`: name -> tensor of
    any shape and float dtype."""
    return b"".join(_parts(state))


def write(state: Mapping[str, Tensor], draft: MakeDraft) -> Draft:
    """The same as a draft, written piece by piece."""
    parts = _parts(state)
    first = next(parts)
    out = draft(len(first) + sum(2 * state[name].numel() for name in own_names(state)))
    out.write(first)
    for part in parts:
        out.write(part)
    return out


def _parts(state: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The header of a release, then its values."""
    names = sorted(own_names(state))
    yield header({name: tuple(state[name].shape) for name in names})
    for name in names:
        yield from values(state[name])


@dataclass(frozen=True)
class Snapshot:
    """One version's release, written to a draft: the model may change while its leaves are computed."""

    version: int
    draft: Draft

    def packed(self) -> Weights:
        """It reads nothing but the draft, so any thread may call it."""
        return Weights(self.version, self.draft.done())


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """Name -> bfloat16 tensor of a release, all values finite. Raises ValueError with the reason."""
    if not data:
        raise ValueError("these weights cannot be read: there are none")
    release = ReleaseFile(Blocks.of(data))
    release.check({*release.places})
    return {name: release.tensor(name) for name in release.places}


@torch.no_grad()
def copy(module: nn.Module, release: ReleaseFile, names: Collection[str]) -> None:
    """Set these of the module's weights, or of its adapter's, to those of a release.

    Raises ValueError or Damaged, with nothing changed, unless the release's names and shapes are the module's
    own and its values can be had.
    """
    mine = state(module)
    check(release.shapes, {name: tuple(mine[name].shape) for name in own_names(mine)})
    release.check(names)
    for name in names:
        tensor = torch.atleast_1d(mine[name].detach())
        for rows, piece in release.pieces(name):
            tensor[rows].copy_(piece)


def load_into(module: nn.Module, blocks: Blocks) -> None:
    """`copy` of all weights of a release."""
    release = ReleaseFile(blocks)
    copy(module, release, release.places)


class Loader:
    """Loads one release after the other into one module: of each, what changed since the one before."""

    def __init__(self, put: Put = copy) -> None:
        self._put = put
        self._before: Contents | None = None
        """The module's values as a release; None where they are those of none."""

    def __call__(self, module: nn.Module, blocks: Blocks) -> None:
        """Raises ValueError and Damaged, with nothing changed."""
        release = ReleaseFile(blocks)
        names = release.changed(self._before)
        try:
            self._put(module, release, names)
        except (ValueError, Damaged):
            raise
        except BaseException:
            self._before = None
            raise
        self._before = release.contents


@torch.no_grad()
def follow(master: Tensor, released: Tensor) -> None:
    """Set `master` (any shape, float32) to `released` (the same shape), but keep values whose bf16 rounding
    already has the released bits."""
    here = released.to(master.device, torch.bfloat16)
    # Compared as bits: 0 and -0 are equal numbers, but different releases.
    agrees = torch.atleast_1d(master.to(torch.bfloat16)).view(torch.int16) == torch.atleast_1d(here).view(
        torch.int16
    )
    torch.where(agrees.view(master.shape), master, here.to(master.dtype), out=master)


def check(told: Mapping[str, Shape], mine: Mapping[str, Shape]) -> None:
    """Raise ValueError unless a release has my names and shapes."""
    if told.keys() != mine.keys():
        strange, missing = sorted(told.keys() - mine.keys()), sorted(mine.keys() - told.keys())
        raise ValueError(f"these weights are of another model: unknown {strange[:3]}, missing {missing[:3]}")
    for name, shape in told.items():
        if shape != mine[name]:
            raise ValueError(
                f"these weights are of another model: {name} is {[*shape]}, here {[*mine[name]]}"
            )


def own_names(state: Mapping[str, Tensor]) -> list[str]:
    """Sorted names, without those that share their memory with a later one (tied weights)."""
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    for name in sorted(state, reverse=True):
        seen.setdefault((state[name].data_ptr(), tuple(state[name].shape)), name)
    return list(seen.values())
