"""Windows before they open: which word a dashboard shows, and what a journal must be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dashboard.serve.replay import JournalReplay
from dashboard.serve.state_view import view_of
from peers.build import run_folder
from peers.build.assembly import _invite_shown
from peers.build.page_server import loopback, private_invite, public_invite
from peers.build.run_folder import RunFolder
from peers.commands.journals import dashboard
from peers.commands.journals.journals import print_first
from peers.errors import WrongUsage
from swarm.events import Noted
from swarm.frames.run_types import Spec
from swarm.frames.wire import encode
from swarm.journal import Tail, from_line, to_line
from swarm.membership import invite as invites
from swarm.membership.identity import open_key
from swarm.protocol import Role
from swarm.settings.config import Config, Run
from swarm.settings.loading import run_dict
from swarm.settings.page import Page
from swarm.storage.durable import write_durably
from swarm.types import Digest, PeerId

ME = PeerId("12D3KooWBv1JUxbGetLPesuHAB469wPhu9UeTbh9UPm9abejcDA9")
ADDRESSES = (f"/ip4/127.0.0.1/tcp/9/p2p/{ME}",)
NOW = time.time()


def folder(path: Path, private: bool, name: str = "windows") -> RunFolder:
    """Of a run that was started here, without a model."""
    owner = open_key(path / "owner.key")
    spec = Spec(
        protocol=1,
        run=run_dict(Run(name=name, private=private)),
        owner=owner.public.hex(),
        files={},
        genesis=Digest("ab" * 32),
        release_size=1,
    )
    return run_folder.keep_spec(path, encode(spec))


def note(number: int) -> bytes:
    return to_line(Noted(at=NOW + number, peer=ME, level="info", text=f"line {number}"))


# --- invites ------------------------------------------------------------------------------------------------


def test_a_public_pages_word_makes_samplers_and_no_members(tmp_path: Path) -> None:
    shown = public_invite(folder(tmp_path, private=False).digest, ADDRESSES * 5)
    assert shown is not None
    said = invites.read(shown.command, NOW)
    assert (said.role, said.delegate, said.addresses) == (Role.SAMPLER, None, ADDRESSES * invites.ADDRESSES)


def test_a_seeds_page_on_loopback_shows_a_private_runs_word_for_samplers(tmp_path: Path) -> None:
    run = folder(tmp_path, private=True)
    shown = _invite_shown(run, ADDRESSES, Page())
    assert shown is not None
    said = invites.read(shown.word, NOW)
    assert said.role is Role.SAMPLER
    assert said.delegate is not None
    assert shown.expires == said.expires > NOW


@pytest.mark.parametrize("page", [Page(host="0.0.0.0"), Page(hosts=("swarm.example",)), Page(invite=False)])
def test_a_private_runs_word_is_not_shown_where_others_may_look(tmp_path: Path, page: Page) -> None:
    assert _invite_shown(folder(tmp_path, private=True), ADDRESSES, page) is None


def test_a_word_for_another_role_is_never_shown(tmp_path: Path) -> None:
    run = folder(tmp_path, private=True)
    for role in (Role.LEARNER, Role.EVALUATOR, Role.OBSERVER):
        assert private_invite(run.invite(role, ADDRESSES), NOW) is None


def test_a_page_without_an_address_to_tell_shows_no_word(tmp_path: Path) -> None:
    assert public_invite(folder(tmp_path, private=False).digest, ()) is None


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("example.org", False),
    ],
)
def test_only_this_machine_reaches_loopback(host: str, alone: bool) -> None:
    assert loopback(host) is alone


# --- journals -----------------------------------------------------------------------------------------------


def test_a_runs_folder_means_its_seeds_journal_and_its_settings(tmp_path: Path) -> None:
    run = folder(tmp_path, private=False, name="of-the-folder")
    for name in ("learner-1", "seed", "observer-1"):
        write_durably(tmp_path / "peers" / name / "journal.jsonl", note(1))
    journal = dashboard.journal_in(tmp_path)
    assert journal == run.path / "peers" / "seed" / "journal.jsonl"
    found = dashboard.run_of(journal)
    assert found is not None
    assert found.name == "of-the-folder"


def test_a_journal_of_its_own_has_no_settings(tmp_path: Path) -> None:
    write_durably(tmp_path / "a" / "b" / "journal.jsonl", note(1))
    assert dashboard.run_of(dashboard.journal_in(tmp_path / "a" / "b")) is None


def test_a_line_that_is_no_event_is_left_out_and_named_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(note(1) + note(2) + b'{"type":"Sung"}\n' + note(3))
    replay, whole = dashboard.replayed(journal, Config()), [from_line(note(k)) for k in (1, 2, 3)]
    assert view_of(replay.moment().state, NOW) == view_of(
        JournalReplay(whole, Config().run).moment().state, NOW
    )
    assert f"not an event and is skipped: line 3 of {journal}" in capsys.readouterr().err


NO_TEXT = b'{"event":"noted","level":"info","text":"\xff","at":1,"peer":"me"}\n'


@pytest.mark.parametrize("content", [b"", b"not a line", bytes(3 << 20), b"\x00\xff\n", NO_TEXT])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(WrongUsage, match="is not a journal"):
        dashboard.replay(tmp_path / "file", Config(), 1.0)


def test_damaged_lines_of_a_journal_that_is_followed_are_left_out_and_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(note(1) + b"\x00\xff\n" + note(2) + b"{}\n" + note(3)[:9])
    tail = Tail(journal, print_first)
    assert [*tail.news()] == [from_line(note(1)), from_line(note(2))]
    said = capsys.readouterr().err
    assert said.count("not an event") == 1 and f"line 2 of {journal}" in said


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="has no journal of a seed or an observer"):
        dashboard.journal_in(tmp_path)
    with pytest.raises(WrongUsage, match="there is no"):
        dashboard.journal_in(tmp_path / "nowhere")
