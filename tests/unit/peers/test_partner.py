"""The bench's children: what they print is no answer, and what goes wrong is a row that is not measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT

from lab.figures.table import Unmeasured
from lab.swarms.partner import Partner, ask_all

CHILD = """
import asyncio, os
from lab.swarms import partner

async def handle(question):
    print("looking at", question)
    if question["do"] == "die":
        raise MemoryError("no room")
    return {"setup": setup, "did": question["do"]}

setup = partner.opened()
print("hello")
partner.say(ready=True)
asyncio.run(partner.answer_all(handle))
open(setup["left"], "w").close()
"""


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "a_child.py").write_text(CHILD)
    root = ROOT
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    return {"left": str(tmp_path / "left")}


def test_each_answers_and_leaves_in_order(setup: dict[str, str]) -> None:
    with Partner("a_child", setup) as one, Partner("a_child", setup) as other:
        assert one.receive() == other.receive() == {"ready": True}
        answers = ask_all([one, other], [{"do": "this"}, {"do": "that"}])
        assert answers == [{"setup": setup, "did": "this"}, {"setup": setup, "did": "that"}]
    assert Path(setup["left"]).exists()


def test_one_that_dies_says_why(setup: dict[str, str]) -> None:
    with Partner("a_child", setup) as one:
        one.receive()
        with pytest.raises(Unmeasured, match=r"^a_child ended its process with exit code 1, .*no room$"):
            one.ask(do="die")
