"""zstd frames of strangers: a frame declares its size, and is refused where that is not an allowed one.

    Zstd(level).deflate(data)            -> frame, which declares its size
    Zstd().inflate(frame, least, most)   -> content, of `least` to `most` bytes
    deflate(data), inflate(frame, least, most)   the same in any thread, with contexts that are kept

python-zstandard allocates what a frame declares, whatever limit it is given; so the declaration is checked
first, and a frame without one is refused. Not handled: contents that are read in pieces.
"""

from __future__ import annotations

from functools import cached_property

import zstandard

Buffer = bytes | bytearray | memoryview


class CompressionError(ValueError):
    """These bytes are no frame of such a size; the message gives the reason."""


class Zstd:
    """zstd's contexts, made when they are needed first: that takes as long as a small frame. Not for two
    threads at once."""

    def __init__(self, level: int = 3) -> None:
        self._level = level

    @cached_property
    def _compressor(self) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(self._level)

    @cached_property
    def _decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor()

    def deflate(self, data: Buffer) -> bytes:
        return self._compressor.compress(data)

    def inflate(self, frame: Buffer, least: int, most: int) -> bytes:
        """The content of one frame that has nothing behind it. Raises CompressionError before anything of a
        wrong size is allocated."""
        try:
            said = zstandard.get_frame_parameters(frame)
            size, window = said.content_size, said.window_size
            # A frame of nothing hides what follows it; ours never look back beyond their content.
            if not (max(1, least) <= size <= most and window <= size):
                raise CompressionError(
                    f"a frame declares {size} bytes (window {window}), not {least} to {most}"
                )
            content = self._decompressor.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CompressionError(f"damaged compression: {error}") from error
        if len(content) != size:
            raise CompressionError(f"a frame has {len(content)} bytes and declares {size}")
        return content


_kept: list[Zstd] = []
"""Those that no thread uses now: as many as were in use at once, most of the time one."""


def deflate(data: Buffer) -> bytes:
    """As Zstd().deflate."""
    zstd = _taken()
    frame = zstd.deflate(data)
    _kept.append(zstd)
    return frame


def inflate(frame: Buffer, least: int, most: int) -> bytes:
    """As Zstd().inflate. After an error the context is used no more."""
    zstd = _taken()
    content = zstd.inflate(frame, least, most)
    _kept.append(zstd)
    return content


def _taken() -> Zstd:
    try:
        return _kept.pop()
    except IndexError:
        return Zstd()
