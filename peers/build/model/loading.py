"""Says what is loaded, and while that takes long, that it goes on: of a large model, minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dashboard.text import duration
from peers.errors import say

T = TypeVar("T")

TOLD_EVERY = 15.0
"""Seconds between two lines about what is still being loaded."""


async def said(what: str, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which loads `what`."""
    say(f"loading {what}")
    loop = asyncio.get_running_loop()
    began, loading = loop.time(), loop.create_task(work)
    try:
        while not (await asyncio.wait((loading,), timeout=TOLD_EVERY))[0]:
            say(f"still loading {what} ({duration(loop.time() - began)} so far)")
        return loading.result()
    finally:
        loading.cancel()
