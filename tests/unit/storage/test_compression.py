"""zstd's contexts are kept from frame to frame, and are no two threads' at once."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from swarm.frames import compression
from swarm.frames.compression import CompressionError, Zstd, deflate, inflate

SOME = b"some bytes that come again, that come again, that come again"


def test_threads_deflate_and_inflate_at_once() -> None:
    contents = [random.Random(number).choices(b"ab", k=30_000) for number in range(200)]

    def there_and_back(content: bytes) -> bytes:
        frame = deflate(content)
        with pytest.raises(CompressionError):
            inflate(frame[:-9], 1, 1 << 20)
        return inflate(frame, 1, 1 << 20)

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(there_and_back, map(bytes, contents))] == [*map(bytes, contents)]
    assert len({id(one) for one in compression._kept}) == len(compression._kept)


def test_one_context_serves_one_frame_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Zstd]()

    class Counted(Zstd):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(compression, "_kept", [])
    monkeypatch.setattr(compression, "Zstd", Counted)
    for _ in range(5):
        assert inflate(deflate(SOME), 1, len(SOME)) == SOME
    assert len(made) == 1
    with pytest.raises(CompressionError):
        inflate(deflate(SOME)[:-4] + b"nope", 1, len(SOME))
    assert inflate(deflate(SOME), 1, len(SOME)) == SOME and len(made) == 2
