"""Tokenization: one for every peer, whatever the model's makers did with theirs."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from swarm.learn.models import template_limits, tiny, tokenization
from swarm.learn.models.pretrained import ModelError
from swarm.learn.models.template_limits import Overrun
from swarm.learn.models.tokenization import Tokenization
from swarm.settings.config import Model
from swarm.types import Message, Task

CONVERSATION = (
    Message(role="user", content="What is 1+1?"),
    Message(role="assistant", content="2"),
    Message(role="user", content="And 2+2?"),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("tiny")
    return {family: tiny.make(path / family, family) for family in tiny.FAMILIES}


@pytest.fixture
def plain(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A model without a chat template."""
    folder = shutil.copytree(folders["llama"], tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    return folder


def task(*messages: Message, prompt: str = "What is 12+30?") -> Task:
    return Task(environment="x", index=3, prompt=prompt, answer="", messages=messages)


def edit(folder: Path, name: str, **changes: object) -> None:
    told = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**told, **changes}))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_prompt_reads_as_transformers_own_chat_template_writes_it(
    folders: dict[str, Path], family: str
) -> None:
    ours, tokenizer = tokenization.load(folders[family]), AutoTokenizer.from_pretrained(folders[family])
    turns = [{"role": "user", "content": "What is 12+30?"}]
    expected = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert ours.encode([ours.render(task())]) == [expected]
    assert expected.count(tokenizer.bos_token_id) == (tokenizer.bos_token_id is not None), (
        "one <bos>, not two"
    )


def test_without_the_template_a_prompt_reads_as_the_tokenizer_alone_encodes_it(
    folders: dict[str, Path],
) -> None:
    ours, tokenizer = (
        tokenization.load(folders["llama"], Model(template="off")),
        AutoTokenizer.from_pretrained(folders["llama"]),
    )
    assert ours.encode([ours.render(task())]) == [tokenizer("What is 12+30?").input_ids]
    assert ours.encode([""]) == [[tokenizer.bos_token_id]]
    assert tokenization.load(folders["qwen3"], Model(template="off")).encode([""]) == [[0]], (
        "no <bos>: an empty text begins with an end"
    )


def test_a_conversation_is_written_turn_by_turn_with_the_runs_system_message(
    folders: dict[str, Path],
) -> None:
    ours = tokenization.load(folders["qwen3"], system="Be brief.")
    text = ours.render(task(*CONVERSATION))
    assert text.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 1+1?<|im_end|>"
    )
    assert text.endswith("And 2+2?<|im_end|>\n<|im_start|>assistant\n")
    own = ours.render(task(Message(role="system", content="Rhyme."), *CONVERSATION))
    assert "Rhyme." in own and "Be brief." not in own
    assert ours.render(task(*CONVERSATION[:2])).endswith("<|im_start|>assistant\n2"), (
        "an answer that is begun is gone on with"
    )


def test_a_model_without_a_chat_template_takes_plain_prompts_alone(plain: Path) -> None:
    ours = tokenization.load(plain)
    assert ours.render(task()) == "What is 12+30?"
    with pytest.raises(
        ModelError,
        match=r"task 3 of x is a conversation, and .*plain has no chat template: take a model with",
    ):
        ours.render(task(*CONVERSATION))
    with pytest.raises(
        ModelError, match=r"no chat template, and the run's model.template is on: set it to auto or off"
    ):
        tokenization.load(plain, Model(template="on"))


def test_a_conversation_with_the_template_off_says_so(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match=r"model.template is off"):
        tokenization.load(folders["qwen3"], Model(template="off")).render(task(*CONVERSATION))


def test_a_template_that_refuses_a_system_message_says_what_to_leave_out(plain: Path) -> None:
    refuses = "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    (plain / "chat_template.jinja").write_text(
        "{% for m in messages %}" + refuses + "{{ m.content }}{% endfor %}"
    )
    assert tokenization.load(plain).render(task()) == "What is 12+30?"
    with pytest.raises(
        ModelError, match=r"conversation of system, user \(no system role\): leave run.task.system empty"
    ):
        tokenization.load(plain, system="Be brief.")


DAY = "{{ 'Today: ' + strftime_now('%d %b %Y %H:%M') + '\\n' }}{{ messages[-1].content }}"
ASKING = {
    DAY: "Today: 26 Jul 2024 00:00\n1+1",
    "{{ strftime_now('%s') }}": "1721952000",
    "{% macro today() %}{{ strftime_now('%Y-%m-%d') }}{% endmacro %}{{ today() }}": "2024-07-26",
    "{{ range(1000) | random }} {{ lipsum(1, html=false, min=5, max=6) }}": None,
}
"""Template that asks for what differs between machines -> what it writes."""

ELSEWHERE = """
import json, sys
from pathlib import Path
from swarm.settings.config import Model
from swarm.learn.models import tokenization
from swarm.types import Task

folder, told = Path(sys.argv[1]), []
for template in json.loads(sys.argv[2]):
    (folder / "chat_template.jinja").write_text(template)
    ours = tokenization.load(folder, Model(date="2024-07-26"))
    told.append(ours.render(Task(environment="x", index=0, prompt="1+1", answer="")))
print(json.dumps(told))
"""


@pytest.mark.nightly
def test_a_prompt_is_the_same_in_every_time_zone_whatever_its_template_asks_for(plain: Path) -> None:
    here, there = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", ELSEWHERE, str(plain), json.dumps([*ASKING])],
                env={**os.environ, "TZ": zone},
                check=True,
                capture_output=True,
            ).stdout
        )
        for zone in ("Etc/GMT-14", "Etc/GMT+12")
    )
    assert here == there
    assert all(said == wanted for said, wanted in zip(here, ASKING.values(), strict=True) if wanted)


def test_a_template_that_asks_for_the_date_is_known_without_loading_it(
    plain: Path, folders: dict[str, Path]
) -> None:
    assert not tokenization.asks_date(plain) and not tokenization.asks_date(folders["qwen3"])
    edit(plain, "tokenizer_config.json", chat_template=DAY)
    assert tokenization.asks_date(plain)
    (plain / "tokenizer_config.json").write_text("{}")
    (plain / "chat_template.jinja").write_text(DAY)
    assert tokenization.asks_date(plain)


def test_a_run_of_an_older_version_has_the_clock_of_each_peer(plain: Path) -> None:
    (plain / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}")
    assert tokenization.load(plain).render(task()) == str(datetime.now(UTC).year)


def test_a_day_that_is_none_is_refused(plain: Path) -> None:
    with pytest.raises(ModelError, match=r"run\.model\.date is 2026-02-30: there is no such day"):
        tokenization.load(plain, Model(date="2026-02-30"))


def test_a_template_that_writes_an_address_is_refused(plain: Path) -> None:
    (plain / "chat_template.jinja").write_text("{{ messages[0].items }}{{ messages[-1].content }}")
    with pytest.raises(
        ModelError, match=r"it writes <built-in method items of dict object at 0x\w+>, which no"
    ):
        tokenization.load(plain)
    (plain / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    told = "What is <function f at 0x7f00>?"
    assert tokenization.load(plain).render(task(prompt=told)) == told


THINKS = "{{ messages[-1].content }}{% if enable_thinking is false %}<think></think>{% endif %}"


def test_a_template_has_the_options_of_the_run(plain: Path) -> None:
    (plain / "chat_template.jinja").write_text(THINKS)
    assert tokenization.load(plain).render(task(prompt="1")) == "1"
    quiet = tokenization.load(plain, Model(template_options={"enable_thinking": False}))
    assert quiet.render(task(prompt="1")) == "1<think></think>"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("enable_thinkng", r"reads no option 'enable_thinkng' \(did you mean 'enable_thinking'\?\)"),
        ("messages", "reads no option 'messages'"),
        ("tokenize", "reads no option 'tokenize'"),
    ],
)
def test_an_option_that_the_template_does_not_read_is_refused(plain: Path, option: str, says: str) -> None:
    (plain / "chat_template.jinja").write_text(THINKS + "{# tokenize #}")
    with pytest.raises(ModelError, match=says):
        tokenization.load(plain, Model(template_options={option: False}))


def test_options_without_a_template_are_refused(plain: Path, folders: dict[str, Path]) -> None:
    options: dict[str, int | float | str | bool] = {"enable_thinking": False}
    with pytest.raises(ModelError, match=r"are of a chat template, and .* has no chat template: leave them"):
        tokenization.load(plain, Model(template_options=options))
    with pytest.raises(ModelError, match=r"are of a chat template, and model.template is off: leave them"):
        tokenization.load(folders["qwen3"], Model(template="off", template_options=options))


@pytest.mark.parametrize(("family", "ends"), [("llama", (1, 4)), ("qwen3", (0, 2)), ("gemma3", (1, 5))])
def test_completions_end_with_a_turn_or_a_text(
    folders: dict[str, Path], family: str, ends: tuple[int, ...]
) -> None:
    assert tokenization.load(folders[family]).ends == ends


def test_the_config_names_the_end_where_there_is_no_generation_config(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["qwen3"], tmp_path / "model")
    (folder / "generation_config.json").unlink()
    edit(folder, "config.json", eos_token_id=1)
    assert tokenization.load(folder).ends == (1, 2)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", r"generation_config\.json cannot be read .*: copy the model again, or leave the file out"),
        ("[]", r"generation_config\.json cannot be read .*: copy the model again, or leave the file out"),
        ("[" * 100_000 + "]" * 100_000, r"generation_config\.json cannot be read .*: copy the model again"),
        ('{"eos_token_id": "<|im_end|>"}', r"names '<\|im_end\|>' as an end token: eos_token_id .* a number"),
        ('{"eos_token_id": [[2]]}', r"names \[2\] as an end token: eos_token_id .* a number"),
    ],
)
def test_a_generation_config_that_cannot_be_used_is_refused(
    folders: dict[str, Path], tmp_path: Path, content: str, says: str
) -> None:
    folder = shutil.copytree(folders["qwen3"], tmp_path / "model")
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=says):
        tokenization.load(folder)


def test_a_tokenizer_without_an_end_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["qwen3"], tmp_path / "model")
    edit(folder, "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match="no end token"):
        tokenization.load(folder)


def test_a_tokenizer_of_another_model_is_refused_with_both_numbers(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    edit(folder, "config.json", vocab_size=300)
    with pytest.raises(
        ModelError, match=r"gives ids up to 399, the model has 300 rows: take both from one model, or"
    ):
        tokenization.load(folder)


def added(folder: Path, token: str, special: bool) -> PreTrainedTokenizerFast:
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([token], special_tokens=special)
    return tokenizer


def test_a_token_that_was_added_without_a_row_for_it_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="up to 400, the model has 400 rows"):
        Tokenization(added(folders["llama"], "<think>", special=False), 400)


def test_a_special_token_of_another_use_says_nothing_as_in_gemma(folders: dict[str, Path]) -> None:
    ours = Tokenization(
        added(folders["gemma3"], "<image>", special=True), 400, settings=Model(template="off")
    )
    assert ours.encode(["1<image>2"]) == ours.encode(["12"])


def test_a_prompt_with_a_special_token_that_the_model_has_no_row_for_is_refused(
    folders: dict[str, Path],
) -> None:
    ours = Tokenization(added(folders["llama"], "<answer>", special=True), 400)
    assert ours.fits([task()], 99) == [True]
    says = r"a prompt has the special token '<answer>' \('Write <answer>4'\), and the model has no row for it"
    for told in (task(prompt="Write <answer>4"), task(Message(role="user", content="Write <answer>4"))):
        with pytest.raises(ModelError, match=says):
            ours.fits([told], 99)
    with pytest.raises(ModelError, match="gives ids up to 400, the model has 400 rows"):
        Tokenization(added(folders["llama"], "<answer>", special=True), 400, system="Write <answer>.")


def test_the_tokens_of_a_prompt_are_counted_with_its_template(folders: dict[str, Path]) -> None:
    ours = tokenization.load(folders["llama"])
    one = task(prompt="word " * 40)
    (ids,) = ours.encode([ours.render(one)])
    assert ours.fits([one, task(), one], len(ids)) == [True] * 3
    assert ours.fits([one, task(), one], len(ids) - 1) == [False, True, False]


def test_rows_without_a_token_decode_to_nothing(folders: dict[str, Path]) -> None:
    ours = tokenization.load(folders["qwen3"])
    assert ours.vocabulary == 432
    (ids,) = ours.encode(["12"])
    assert ours.decode([ids[0], 431, ids[1], 400, 2]) == "12"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_batch_decodes_as_transformers_decodes_each_of_its_rows(
    folders: dict[str, Path], family: str
) -> None:
    ours = tokenization.load(folders[family])
    last = ours.vocabulary - 1
    rows = [[*row, ours.ends[0]] for row in ours.encode(["1 + 2 = 3", " ", "42"])] + [[last], []]
    one_by_one = [ours.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    assert ours.decode_batch(rows) == one_by_one
    assert ours._backend is not None, "each token's type is looked at otherwise"


def test_a_tokenizer_with_a_decode_of_its_own_is_asked(folders: dict[str, Path]) -> None:
    class Own(PreTrainedTokenizerFast):
        def _decode(self, token_ids: list[int], *args: object, **more: object) -> str:
            return f"{len(token_ids)} tokens"

    own = Own.from_pretrained(folders["llama"])
    ours = Tokenization(own, 500, settings=Model(template="off"))
    assert ours.decode_batch([[5, 6, 499], [7]]) == ["2 tokens", "1 tokens"]


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set s = namespace(a='a') %}{% for i in range(40) %}{% set s.a = s.a + s.a %}{% endfor %}"
TOO_MUCH = [
    (ENDLESS, "processor time"),
    ("{{ 9 ** (9 ** (8 + messages | length)) > 1 }}", "processor time"),
    ("{{ ('a' * 10 ** 11) | length }}", "MiB"),
    (DOUBLED, "MiB"),
    ("{{ 'a ' * 1000 }}", "characters"),
]


@pytest.fixture
def hostile(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(template_limits, "SECONDS", 0.25)
    monkeypatch.setattr(template_limits, "MEMORY", 64 << 20)
    monkeypatch.setattr(template_limits, "LONGEST", 1000)
    return shutil.copytree(folders["llama"], tmp_path / "hostile")


@pytest.mark.parametrize(("template", "why"), TOO_MUCH[:1])
def test_a_chat_template_without_end_is_refused_with_a_sentence(
    hostile: Path, template: str, why: str
) -> None:
    (hostile / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=why):
        tokenization.load(hostile)


@pytest.mark.parametrize(("template", "why"), TOO_MUCH)
def test_a_chat_template_that_is_harmless_but_for_one_conversation_ends_with_it_and_writes_the_next_one(
    hostile: Path, template: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "MiB":  # on a busy machine so much of new memory takes longer than the fixture's limit
        monkeypatch.setattr(template_limits, "SECONDS", 2.0)
    bad = "{% if 'bad' in messages[-1].content %}" + template + "{% endif %}{{ messages[-1].content }}"
    (hostile / "chat_template.jinja").write_text(bad)
    ours = tokenization.load(hostile)
    with pytest.raises(Overrun, match=why):
        ours.render(task(prompt="a bad one"))
    assert ours.render(task(prompt="a good one")) == "a good one"


def test_of_several_conversations_the_first_that_cannot_be_written_is_named(hostile: Path) -> None:
    refuses = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    (hostile / "chat_template.jinja").write_text(refuses + "{{ messages[-1].content }}")
    ours = tokenization.load(hostile)
    good, bad = task(prompt="a good one"), task(Message(role="tool", content="3"))
    with pytest.raises(ModelError, match=r"cannot write a conversation of tool \(no tools\)"):
        ours.render_all([good, bad, good])
    assert ours.render_all([good, task(*CONVERSATION), good]) == ["a good one", "And 2+2?", "a good one"]
    assert ours.render_all([]) == []


def test_a_chat_template_has_its_time_for_each_conversation(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "{% for i in range(99999) %}{% for j in range(33) %}{% endfor %}{% endfor %}"
    (hostile / "chat_template.jinja").write_text(slow + "{{ messages[-1].content }}")
    monkeypatch.setattr(template_limits, "SECONDS", 5.0)
    began = time.monotonic()
    tokenization.load(hostile).render(task())
    monkeypatch.setattr(template_limits, "SECONDS", 2 * (time.monotonic() - began))
    assert tokenization.load(hostile).render_all([task()] * 8) == ["What is 12+30?"] * 8


def test_a_chat_template_that_needs_too_much_again_and_again_is_not_asked_any_more(hostile: Path) -> None:
    (hostile / "chat_template.jinja").write_text(
        "{% if messages[-1].content == 'bad' %}" + "a" * 2000 + "{% endif %}"
    )
    ours = tokenization.load(hostile)
    for _ in range(template_limits.OVERRUNS):
        with pytest.raises(Overrun, match="characters"):
            ours.render(task(prompt="bad"))
    with pytest.raises(Overrun, match="not used any more"):
        ours.render(task(prompt="good"))


def test_an_error_inside_a_chat_template_is_one_of_the_conversation(hostile: Path) -> None:
    (hostile / "chat_template.jinja").write_text("{{ messages[0].content }}{{ 1 + messages | length * 'a' }}")
    with pytest.raises(ModelError, match=r"cannot write a conversation of user .*unsupported operand"):
        tokenization.load(hostile)


def test_a_process_that_writes_and_is_killed_costs_no_conversation(folders: dict[str, Path]) -> None:
    ours = tokenization.load(folders["llama"])
    keeper = psutil.Process(ours._template._child.pid)  # type: ignore[union-attr]
    (writer,) = keeper.children()
    assert {keeper.name(), writer.name()} == {template_limits.NAME}
    text = ours.render(task())
    for one in (writer, keeper) * template_limits.OVERRUNS:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
        assert ours.render(task()) == text


def test_the_process_that_writes_ends_with_its_tokenization(folders: dict[str, Path]) -> None:
    ours = tokenization.load(folders["llama"])
    child = ours._template._child
    assert child is not None and child.alive
    del ours
    gc.collect()
    assert not child.alive
