"""rich's consoles, and what happens when their reader is gone.

    Listing            of a command that is only read (`swarm status | head`): BrokenPipeError, with which
                       peers.errors.guarded ends it well
    optional_console   of a program that works (`swarm up | head`): it goes on without a reader

rich's own console ends the program with exit code 1, a bug.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, Literal, TextIO, cast

from rich.console import Console
from rich.segment import Segment

from dashboard.text import printable
from peers.errors import drawn, unneeded

BLANKS = re.compile(r" +(?=\n)")
"""With which rich fills the lines of tables."""


class _Plain(Console):
    """Makes all text visible, whatever its source; styles and cursor movement come from this program
    alone."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            one if one.control else one._replace(text=printable(one.text)) for one in buffer
        )


class Listing(_Plain):
    """Raises BrokenPipeError where its reader has gone."""

    def __init__(self, width: int | None = None, highlight: bool = True) -> None:
        super().__init__(file=cast(TextIO, _Stream("stdout")), width=width, highlight=highlight)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def optional_console(name: Literal["stdout", "stderr"], width: int | None = None) -> Console:
    """A console of a program that needs no reader: output that its stream refuses is dropped silently.
    `width`: columns; None: the terminal's."""
    return _Plain(file=cast(TextIO, _Unneeded(name)), width=width)


def drawable(console: Console) -> bool:
    """Whether a live view can be drawn on it: in a pipe, a file and a terminal with TERM=dumb rich shows
    nothing of one before its end."""
    return console.is_terminal and not console.is_dumb_terminal


class _Stream:
    """A stream of `sys`, which is spared the blanks at the ends of lines."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _stream(self) -> TextIO:
        return drawn(getattr(sys, self._name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(BLANKS.sub("", text))
        return len(text)


class _Unneeded(_Stream):
    """A stream whose other end may be closed, and which may lie on a full disk."""

    def write(self, text: str) -> int:
        with unneeded(self._stream):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with unneeded(self._stream):
            self._stream.flush()
