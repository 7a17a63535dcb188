"""The dashboard says what few learners are not protected from."""

from __future__ import annotations

from io import StringIO

import pytest
from dashboard_story import LEARNERS
from made_up_swarm import Swarm
from rich.console import Console

from dashboard.diagnosis.condition import UNPROTECTED, condition
from dashboard.serve.state_view import head_of
from dashboard.serve.terminal import render


@pytest.mark.parametrize("learners", [1, 2])
def test_a_note_and_no_verdict_says_what_so_few_learners_are_not_protected_from(learners: int) -> None:
    swarm = Swarm()
    swarm.dead.update(LEARNERS[learners:])
    swarm.run(40.0)
    assert head_of(swarm.state, swarm.now).note == UNPROTECTED[learners]
    shown = Console(width=200, file=(text := StringIO()))
    shown.print(render(swarm.state, swarm.now, 200))
    assert UNPROTECTED[learners] in text.getvalue()
    said = condition(swarm.state, swarm.now, ()).text
    assert not [text for text in UNPROTECTED.values() if text in said]
