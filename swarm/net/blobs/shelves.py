"""A shelf: versions as images, in memory or as files of a folder that survive restarts.

    <root>        the bytes (swarm.storage.image)           <root>.release    its leaves: all blocks are there
    new-<number>      a version in the making           <root>.begun      its leaves: some blocks are there

A shelf knows digests, bytes, and below which roots all blocks are here; swarm.net.blobs.store decides what is
held. Every block of a file is checked against its leaf when the shelf is opened and whenever it is read:
blocks that a crash, a disk or another program changed are reported and count as missing, the rest of the
version stays, and a fetch adds the missing ones. Marks are written durably, the bytes too where they must be
`lasting`. Bytes that a disk refuses are held in memory. Not handled: two processes on one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Meta

from swarm.frames.wire import WireError, decode, encode
from swarm.storage.blocks import (
    LARGEST,
    LEAF,
    MOST,
    Blocks,
    Buffer,
    Damaged,
    Rule,
    block_size,
    leaf_list,
    read_leaf_list,
    root_of,
)
from swarm.storage.durable import make_folder, read_checked, write_checked
from swarm.storage.image import Draft, Image
from swarm.types import Digest, Struct


class Held(NamedTuple):
    """A version that is, or will be, here below a root."""

    root: Digest
    version: int
    size: int
    leaves: tuple[Digest, ...]

    @classmethod
    def of(cls, version: int, blocks: Blocks) -> Held:
        return cls(blocks.root, version, blocks.size, blocks.leaves)


class Mark(Struct):
    """Beside an image in a folder."""

    version: int
    size: Annotated[int, Meta(gt=0, le=LARGEST)]
    leaves: Annotated[bytes, Meta(max_length=LEAF * MOST)]


class Shelved:
    """An image, and which of its blocks are here."""

    def __init__(self, held: Held, image: Image) -> None:
        self.held, self.image = held, image
        self.blocks = Blocks(image, held.leaves, held.root, image.step)
        self.at: dict[Digest, list[int]] = {}
        """Leaf -> numbers of its blocks, of which equal ones have one leaf."""
        for number, leaf in enumerate(held.leaves):
            self.at.setdefault(leaf, []).append(number)
        self.missing = set(held.leaves)

    def check(self) -> str:
        """Read all blocks. Returns what is wrong with the first one that is not here; empty when all are."""
        self.missing, wrong = set[Digest](), ""
        for number, leaf in enumerate(self.held.leaves):
            try:
                self.blocks[number]
            except Damaged as error:
                self.missing.add(leaf)
                wrong = wrong or str(error)
        return wrong


class Shelf:
    """Images of versions, in `folder` or in memory."""

    def __init__(
        self,
        folder: Path | None,
        on_damage: Callable[[str], None],
        rule: Rule = block_size,
    ) -> None:
        """Read the folder back, if one is given: every block is hashed.

        `rule` gives the size of blocks.
        """
        self._folder, self._on_damage, self._rule = folder, on_damage, rule
        self._shelved: dict[Digest, Shelved] = {}
        self._alive = WeakValueDictionary[Digest, Image]()
        """Images that were dropped and are still being read: they have their names."""
        self._numbers = count()
        self._refusal: str | None = None
        self._lacks = False
        """The disk may lack some of it. Otherwise the disk is not looked at, since one that hangs would stop
        the caller."""
        if folder is not None:
            self._try(self._read_back, folder)

    def __len__(self) -> int:
        """Blobs that are here."""
        return sum(
            len(shelved.at) - len(shelved.missing) + (len(shelved.held.leaves) > 1)
            for shelved in [*self._shelved.values()]
        )

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._shelved or self._with(digest) is not None

    def get(self, digest: Digest) -> Buffer | None:
        """A block, checked, or a leaf list. A block that is damaged is reported once, and is missing from
        then on."""
        while (shelved := self._with(digest)) is not None:
            try:
                return shelved.blocks[shelved.at[digest][0]]
            except Damaged as error:
                self._damaged(shelved, str(error))
        found = self._shelved.get(digest)
        return leaf_list(found.held.leaves) if found is not None and len(found.held.leaves) > 1 else None

    def _with(self, leaf: Digest) -> Shelved | None:
        """A version with this block."""
        for shelved in [*self._shelved.values()]:  # a copy: a folder is changed in a thread of its own
            if leaf in shelved.at and leaf not in shelved.missing:
                return shelved
        return None

    def is_whole(self, root: Digest) -> bool:
        """Whether all blocks below `root` are here, as far as is known."""
        shelved = self._shelved.get(root)
        return shelved is not None and not shelved.missing

    def blocks(self, root: Digest) -> Blocks | None:
        """The version below `root`, if all of it is here; it can be read for as long as it is held."""
        return self._shelved[root].blocks if self.is_whole(root) else None

    def check(self, root: Digest) -> None:
        """Look at all blocks below `root`, since one of them was found damaged."""
        if (shelved := self._shelved.get(root)) is not None and (wrong := shelved.check()):
            self._damaged(shelved, wrong)

    def lacks(self, root: Digest, leaf: Digest) -> bool:
        """Whether this block of a version that was begun is missing."""
        return leaf in self._shelved[root].missing

    # --- changes --------------------------------------------------------------------------------------------

    def draft(self, size: int) -> Draft:
        """A version in the making, which `put` names."""
        return Draft(self._image(size, f"new-{next(self._numbers)}"))

    def _image(self, size: int, name: str) -> Image:
        return Image(size, None if self._folder is None else self._folder / name, self._rule(size))

    def put(self, held: Held, blocks: Blocks, lasting: bool) -> None:
        """Hold a whole version: a draft as it is, other bytes as a copy; `lasting` as in `mark`."""
        known = self._shelved.get(held.root)
        if known is not None and not known.missing:
            known.held = held
        elif known is None and held.root in self._alive:
            self._place(Shelved(held, self._alive[held.root]))
        else:
            image = self._own(held, blocks)
            if image.path is not None:
                assert self._folder is not None
                self._try(image.move, self._folder / held.root)
            self._place(Shelved(held, image))
        self._shelved[held.root].missing.clear()
        self.mark(held, lasting)

    def _own(self, held: Held, blocks: Blocks) -> Image:
        """An image of this shelf's kind with these bytes."""
        image = blocks.source
        if isinstance(image, Image) and (self._folder is None or not image.is_checked):
            return image
        draft = self.draft(held.size)
        for leaf, block in zip(held.leaves, blocks, strict=True):
            draft.add(block, leaf)
        return draft.image

    def begin(self, held: Held) -> None:
        """A place for the blocks of a version, unless it has one."""
        if held.root in self._shelved:
            return
        if held.root in self._alive:
            shelved = Shelved(held, self._alive[held.root])
            shelved.check()
        else:
            shelved = Shelved(held, self._image(held.size, held.root))
        self._place(shelved)
        self._note(held, "begun")

    def _place(self, shelved: Shelved) -> None:
        shelved.image.want(True)
        self._receive(shelved.image.refusal)
        self._alive[shelved.held.root] = shelved.image
        self._shelved[shelved.held.root] = shelved

    def add(self, blobs: Mapping[Digest, Buffer]) -> None:
        """Blocks of versions that were begun."""
        for leaf, data in blobs.items():
            for shelved in [*self._shelved.values()]:
                if leaf in shelved.missing:
                    for number in shelved.at[leaf]:
                        shelved.image.write(number, data)
                        self._receive(shelved.image.refusal)
                    shelved.missing.discard(leaf)

    def mark(self, held: Held, lasting: bool) -> None:
        """All its blocks are here; with `lasting`, after a power failure too."""
        if lasting:
            self._try(self._shelved[held.root].image.sync)
        self._note(held, "release")
        self._unlink(f"{held.root}.begun")

    def drop(self, roots: Iterable[Digest]) -> None:
        for root in roots:
            for mark in ("release", "begun"):
                self._unlink(f"{root}.{mark}")
            if (shelved := self._shelved.pop(root, None)) is not None:
                shelved.image.want(False)

    # --- what outlives the peer -----------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """Why the disk refused something since the last call; empty when it took that, and has all that it
        refused before; else None."""
        why, self._refusal = self._refusal, None
        if why == "" and self._lacks and not all(map(self._is_stored, [*self._shelved.values()])):
            return None
        self._lacks = bool(why) or (self._lacks and why is None)
        return why and f"{self._folder} takes no more ({why}): further blocks are held in memory only"

    def store(self) -> None:
        """Retry the writes that the disk refused."""
        if self._folder is None:
            return
        self._try(make_folder, self._folder)
        for root, shelved in [*self._shelved.items()]:
            if not shelved.missing and not self._is_stored(shelved):
                self._try(shelved.image.store, self._folder / root)
                self._receive(shelved.image.refusal)
                self.mark(shelved.held, True)

    def _is_stored(self, shelved: Shelved) -> bool:
        """Whether the folder has all of its blocks that are here."""
        assert self._folder is not None
        path = self._folder / shelved.held.root
        marked = path.with_suffix(".begun" if shelved.missing else ".release").exists()
        return marked and shelved.image.path == path

    def whole(self) -> list[Held]:
        """Versions with all their blocks."""
        return [shelved.held for shelved in self._shelved.values() if not shelved.missing]

    def begun(self) -> list[Held]:
        """Versions with some of their blocks."""
        return [shelved.held for shelved in self._shelved.values() if shelved.missing]

    def _read_back(self, folder: Path) -> None:
        """Load the marked versions; remove the rest, which a crash left behind."""
        make_folder(folder)
        damaged: list[tuple[Shelved, str]] = []
        for mark in ("release", "begun"):
            for path in sorted(folder.glob(f"*.{mark}")):
                held = self._read_mark(path)
                if held is not None and held.root not in self._shelved and (folder / held.root).is_file():
                    shelved = Shelved(held, self._image(held.size, held.root))
                    wrong = shelved.check()
                    self._place(shelved)
                    if wrong and mark == "release":
                        damaged.append((shelved, wrong))
        self._left_out(damaged)
        known = {f"{root}{end}" for root in self._shelved for end in ("", ".release", ".begun")}
        for path in folder.iterdir():
            if path.is_file() and path.name not in known:
                self._unlink(path.name)

    def _read_mark(self, path: Path) -> Held | None:
        """The version of the mark; None when the mark is damaged."""
        try:
            mark = decode(read_checked(path), Mark)
            leaves = read_leaf_list(mark.leaves, mark.size, self._rule(mark.size))
        except (WireError, ValueError, OSError):  # Torn is a ValueError
            return None
        whole = root_of(leaves) == path.stem
        return Held(Digest(path.stem), mark.version, mark.size, leaves) if whole else None

    def _damaged(self, shelved: Shelved, what: str) -> None:
        shelved.check()
        self._left_out([(shelved, what)])

    def _left_out(self, damaged: Sequence[tuple[Shelved, str]]) -> None:
        """Report versions that lack blocks, once they were checked: all together, since a disk that lost one
        has often lost many."""
        if not damaged:
            return
        (one, what), more = damaged[-1], len(damaged) - 1
        and_more = (
            f", and some of {more} more versions," if more > 1 else ", and some of another," if more else ""
        )
        self._on_damage(
            f"{what}; {len(one.missing)} of {len(one.at)} blocks of version {one.held.version}{and_more} are"
            " left out until they are fetched again"
        )
        for shelved, _ in damaged:
            self._note(shelved.held, "begun")
            self._unlink(f"{shelved.held.root}.release")

    def _note(self, held: Held, mark: str) -> None:
        if self._folder is not None:
            content = encode(Mark(version=held.version, size=held.size, leaves=leaf_list(held.leaves)))
            self._try(write_checked, self._folder / f"{held.root}.{mark}", content)

    def _unlink(self, name: str) -> None:
        if self._folder is not None:
            self._try((self._folder / name).unlink, True)

    def _try(self, use: Callable[..., object], *args: object) -> None:
        why = ""
        try:
            use(*args)
        except OSError as error:
            why = error.strerror or str(error)
        self._receive(why)

    def _receive(self, why: str) -> None:
        """Note the result of a write to the disk."""
        if self._folder is not None:
            self._refusal = self._refusal or why
