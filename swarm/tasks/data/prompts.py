"""A cell of a data set as a prompt: text, or a conversation of messages with a role and text.

    "2 + 2 ="                                                        -> the text
    [{"role": "user", "content": "2 + 2 ="}]                         -> a conversation
    [{"role": "user", "content": [{"type": "text", "text": ...}]}]   -> the same: parts of text, joined

Any other part of a message that would change the model's input (pictures, calls of tools) makes the cell
unusable: without it the conversation would be another one. Raises Unusable, with the obstacle. Not handled:
columns (swarm.tasks.data.dataset), templates (swarm.learn.models.tokenization).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from swarm.frames.grammar import an
from swarm.types import Message

KINDS = {dict: "struct", list: "list", str: "text", int: "number", float: "number", bool: "true or false"}
"""What types of Python are called in a file of data."""


class Unusable(Exception):
    """This cell makes its row unusable. The message continues `7 rows`."""

    def __init__(self, why: str, where: str = "") -> None:
        """`where`: in the cell, for example `message 2`."""
        super().__init__(why)
        self.where = where


def prompt_of(value: object, column: str) -> str | tuple[Message, ...]:
    """The text, or the conversation, in a cell of this column. Raises Unusable."""
    if value is None or value == [] or (isinstance(value, str) and not value.strip()):
        raise Unusable(f"without text in {column!r}")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Unusable(f"whose {column!r} is {kind_of(value)}")
    turns = tuple(_message(turn, column, f"message {number}") for number, turn in enumerate(value, 1))
    if not turns[-1].content:
        raise Unusable(f"without text in the last message of {column!r}")
    return turns


def kind_of(value: object) -> str:
    """`a list`, `a struct`."""
    return an(KINDS.get(type(value), type(value).__name__))


def _message(turn: object, column: str, where: str) -> Message:
    if not isinstance(turn, dict):
        raise Unusable(f"whose {column!r} has {kind_of(turn)} for a message", where)
    if not isinstance(role := turn.get("role"), str) or not role:
        raise Unusable(f"whose {column!r} has a message without role", where)
    if turn.get("tool_calls") or turn.get("function_call"):
        raise Unusable(f"whose {column!r} has tool_calls, which are not read", where)
    return Message(role=role, content=_text(turn, column, where))


def _text(turn: Mapping[str, Any], column: str, where: str) -> str:
    content = turn.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        raise Unusable(f"whose {column!r} has a message without content", where)
    if isinstance(content, int | float):
        return json.dumps(content)  # a text, which `datasets` reads as JSON where others beside it are lists
    if not isinstance(content, list):
        raise Unusable(f"whose {column!r} has {kind_of(content)} for the content of a message", where)
    return "".join(_part(part, column, where) for part in content)


def _part(part: object, column: str, where: str) -> str:
    if not isinstance(part, dict):
        raise Unusable(f"whose {column!r} has {kind_of(part)} for a part of a message", where)
    text, kind = part.get("text"), part.get("type") or "text"
    if kind == "text" and isinstance(text, str):
        return text
    what = f"of type {kind!r}, which is not read" if kind != "text" else "of type 'text' without text"
    raise Unusable(f"whose {column!r} has a part {what}", where)
