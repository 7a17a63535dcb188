"""rich's consoles, and what they do when nobody reads them any more.

    Listing       of a command that is only read (`swarm status | head`): BrokenPipeError, with which
                  peers.errors.guarded ends it well
    spoken(...)   of a program that works (`swarm up | head`): it goes on without a reader

rich's own console ends the program with exit code 1, a bug.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, Literal, TextIO, cast

from rich.console import Console

from peers.errors import unneeded


class Listing(Console):
    """Raises BrokenPipeError where its reader has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def spoken(name: Literal["stdout", "stderr"], width: int | None = None) -> Console:
    """A console of a program that needs no reader: what its stream refuses is not said. `width`: columns;
    None: those of the terminal."""
    return Console(file=cast(TextIO, _Unneeded(name)), width=width)


def drawable(console: Console) -> bool:
    """Whether a live view can be drawn on it: in a pipe, a file and a terminal with TERM=dumb rich shows
    nothing of one before its end."""
    return console.is_terminal and not console.is_dumb_terminal


class _Unneeded:
    """A stream of `sys` that may be closed at its other end, and may lie on a full disk."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _stream(self) -> TextIO:
        return cast(TextIO, getattr(sys, self._name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with unneeded(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with unneeded(self._stream):
            self._stream.flush()
