"""Data sets as tasks: real files of every kind, read by `datasets`."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.tasks.base import TaskError
from swarm.tasks.data import rows
from swarm.tasks.data.dataset import DEFAULTS, DataSet, make
from swarm.types import Message

ROWS = [{"question": f"what is {i} + {i}?", "answer": str(2 * i), "level": i % 3} for i in range(100)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


def jsonl(path: Path, lines: list[Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def comma(path: Path, lines: list[Any], between: str = ",") -> str:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), delimiter=between)
        writer.writeheader()
        writer.writerows(lines)
    return str(path)


def parquet(path: Path, lines: list[Any]) -> str:
    datasets.Dataset.from_list(lines).to_parquet(str(path))
    return str(path)


def saved(path: Path, lines: list[Any]) -> str:
    datasets.Dataset.from_list(lines).save_to_disk(str(path))
    return str(path)


def saved_splits(path: Path, lines: list[Any]) -> str:
    datasets.DatasetDict({"train": datasets.Dataset.from_list(lines)}).save_to_disk(str(path))
    return str(path)


def folder(path: Path, lines: list[Any]) -> str:
    path.mkdir()
    jsonl(path / "train.jsonl", lines)
    jsonl(path / "test.jsonl", lines[:3])
    return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The Hub has the files of this folder as `ada/codes`; the options of the calls for them."""
    asked: list[dict[str, Any]] = []
    local = datasets.load_dataset

    def load(name: str, *words: Any, revision: str | None = None, **more: Any) -> Any:
        if name == "ada/codes":
            asked.append(more)
        return local(str(tmp_path) if name == "ada/codes" else name, *words, **more)

    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


def of(lines: list[Any], seed: int = 1, held: list[Any] | None = None, **options: Any) -> DataSet:
    """Without the way over a file."""
    table = datasets.Dataset.from_list(lines)
    reserved = datasets.Dataset.from_list(held) if held else None
    return DataSet("data:x", seed, DEFAULTS | options, table, reserved, lambda line: None)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (jsonl, "a.jsonl"),
        (jsonl, "a.json"),
        (comma, "a.csv"),
        (parquet, "a.parquet"),
        (saved, "a"),
        (saved_splits, "a"),
        (folder, "a"),
    ],
)
def test_every_kind_of_file_gives_the_same_tasks(
    write: Callable[[Path, list[Any]], str], name: str, tmp_path: Path
) -> None:
    source = make(write(tmp_path / name, ROWS), 5, {})
    plain = of(ROWS, 5)
    tasks = [(task.prompt, task.answer) for task in map(source.task, range(30))]
    assert tasks == [(task.prompt, task.answer) for task in map(plain.task, range(30))]
    assert all(
        (prompt, answer) in {(row["question"], row["answer"]) for row in ROWS} for prompt, answer in tasks
    )


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(0, 2**16), st.floats(0.0, 0.9), st.integers(0, 3))
def test_an_epoch_has_every_training_row_once_and_no_held_out_prompt(
    size: int, seed: int, share: float, epoch: int
) -> None:
    lines = [{"prompt": f"p{i // 2}", "answer": str(i)} for i in range(size)]  # each prompt twice
    source = of(lines, seed, held_out=share)
    trained = [source.task(epoch * len(source) + i) for i in range(len(source))]
    held = source.held_out(size)
    assert sorted(int(task.answer) for task in [*trained, *held]) == list(range(size))
    assert not {task.prompt for task in trained} & {task.prompt for task in held}
    assert [task.index for task in held] == [-1 - i for i in range(len(held))]


def test_epochs_and_seeds_differ_in_order_and_the_held_out_prompts_are_those_of_every_seed() -> None:
    one, two = of(ROWS, 1), of(ROWS, 2)
    orders = [
        [source.task(start + i).prompt for i in range(len(one))]
        for source in (one, two)
        for start in (0, len(one))
    ]
    assert len({tuple(order) for order in orders}) == 4 and len({frozenset(order) for order in orders}) == 1
    assert {task.prompt for task in one.held_out(99)} == {task.prompt for task in two.held_out(99)}
    unshuffled = of(ROWS, shuffle=False, held_out=0)
    assert [unshuffled.task(i).prompt for i in range(101)] == [row["question"] for row in [*ROWS, ROWS[0]]]


def test_prompts_that_differ_in_blanks_alone_are_in_one_half() -> None:
    lines = [
        {"prompt": f"what  is {i}?\n" if i % 2 else f" what is {i - i % 2 + 1}?", "answer": "1"}
        for i in range(400)
    ]
    source = of(lines, held_out=0.3)
    words = {" ".join(source.task(i).prompt.split()) for i in range(len(source))}
    assert not words & {" ".join(task.prompt.split()) for task in source.held_out(400)}


def test_a_held_out_split_never_trains_even_where_its_prompts_are_in_the_training_split(
    tmp_path: Path,
) -> None:
    path = folder(tmp_path / "data", ROWS)
    source = make(path, 1, {"held_out_split": "test"})
    assert {task.prompt for task in source.held_out(99)} == {row["question"] for row in ROWS[:3]}
    assert len(source) == 97


def test_a_conversation_becomes_messages_and_its_last_turn_the_prompt() -> None:
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}]
    task = of([{"prompt": turns, "answer": 2}]).task(0)
    assert task.messages == (Message(role="system", content="be brief"), Message(role="user", content="1+1?"))
    assert task.prompt == "1+1?" and task.answer == "2"


def test_an_answer_is_what_follows_the_last_marker_and_rewards_see_it_too() -> None:
    lines = [{"question": "q", "answer": "3 #### no\nso #### 1,234 "}, {"question": "r", "answer": "none"}]
    source = of(lines, answer_after="####", held_out=0)
    task = source.task(0)
    assert len(source) == 1 and task.answer == "1,234" and source.columns(task)["answer"] == "1,234"
    raw = of(lines, held_out=0)
    assert {raw.columns(raw.task(i))["answer"] for i in (0, 1)} == {line["answer"] for line in lines}


def test_whole_numbers_are_whole_also_where_a_gap_made_them_fractions(tmp_path: Path) -> None:
    source = make(
        comma(tmp_path / "a.csv", [{"prompt": "a", "answer": 7}, {"prompt": "b", "answer": ""}]),
        1,
        {"held_out": 0},
    )
    task = source.task(0)
    assert task.answer == "7" and source.columns(task)["answer"] == 7 and len(source) == 1


def test_rows_of_no_use_are_left_out_and_counted_once(tmp_path: Path) -> None:
    bad = [
        {"answer": "1"},
        {"question": "", "answer": "1"},
        {"question": 7, "answer": "1"},
        {"question": ["x"], "answer": "1"},
        {"question": "q"},
        {"question": "q", "answer": " "},
        {"question": [{"role": "user"}], "answer": "1"},
    ]
    told: list[str] = []
    source = make(jsonl(tmp_path / "a.jsonl", [*bad, *ROWS]), 1, {}, say=told.append)
    assert len(source) + len(source.held_out(999)) == len(ROWS)
    assert len(told) == 1 and "left out are 7 of 107 rows: " in told[0]
    assert "2 without text in 'answer' (the first is row 5)" in told[0]
    assert "whose 'question' has a message without content (the first is row 7, message 1)" in told[0]


@pytest.mark.parametrize(
    ("lines", "options", "says"),
    [
        (
            ROWS,
            {"prompt": "qestion"},
            "no column 'qestion' for the prompt .did you mean 'question'.*; it has question, a",
        ),
        (ROWS, {"answer": "gold"}, "no column 'gold' for the answer; it has question, answer, level"),
        (
            [{"text": "a"}],
            {},
            "none of the columns prompt, question, problem, instruction, input; it has text",
        ),
        (ROWS, {"answer_after": "####"}, "no row that can be used: 100 of 100 rows"),
        (ROWS, {"split": "tain"}, "no split 'tain' .did you mean 'train'"),
        (ROWS, {"held_out": 1}, "at least 0 and below 1"),
        (ROWS, {"promt": "x"}, "no option 'promt' .did you mean 'prompt'"),
        (["text"], {}, "cannot be read"),
    ],
)
def test_data_that_cannot_be_a_task_is_refused_with_what_it_has(
    lines: list[Any], options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=says):
        make(jsonl(tmp_path / "a.jsonl", lines), 1, options)


def test_a_file_that_is_missing_empty_broken_or_of_another_kind_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b\n')
    (tmp_path / "notes.docx").write_text("x")
    (tmp_path / "folder").mkdir()
    for name, says in {
        "missing.jsonl": "no file or folder",
        "empty.jsonl": "no rows",
        "broken.jsonl": "cannot be read: JSON parse error",
        "notes.docx": "no known kind",
        "folder": "folder cannot be read: .*data files",
    }.items():
        with pytest.raises(TaskError, match=says):
            make(str(tmp_path / name), 1, {})


DEEP = "[" * 3000 + "]" * 3000


def test_a_data_set_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text(f'{{"prompt": "a", "answer": "b", "tests": {DEEP}}}\n')
    with pytest.raises(TaskError, match=r"deep\.jsonl cannot be read .*it is nested too deep"):
        make(str(tmp_path / "deep.jsonl"), 1, {})


@pytest.mark.parametrize("said", [DEEP, "7", '{"info": 7}', '{"info": {"features": {"question": 7}}}'])
def test_a_parquet_file_whose_columns_are_described_wrongly_is_refused(said: str, tmp_path: Path) -> None:
    table = pa.table({"question": ["a"], "answer": ["b"]}).replace_schema_metadata({"huggingface": said})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(TaskError, match=r"a\.parquet cannot be read .* is damaged; save it again"):
        make(str(tmp_path / "a.parquet"), 1, {})


@pytest.mark.parametrize(
    ("make_it", "name", "said"),
    [
        (saved, "state.json", "{}"),
        (saved, "state.json", DEEP),
        (saved, "dataset_info.json", "7"),
        (saved_splits, "dataset_dict.json", "{}"),
        (folder, "README.md", "---\nconfigs: [a: b: {\n---\n"),
        (folder, "README.md", "---\ndataset_info: {features: 7}\n---\n"),
    ],
)
def test_a_folder_whose_description_is_damaged_is_refused(
    make_it: Callable[[Path, list[Any]], str], name: str, said: str, tmp_path: Path
) -> None:
    place = Path(make_it(tmp_path / "data", ROWS))
    (place / name).write_text(said)
    with pytest.raises(TaskError, match=r"data cannot be read"):
        make(str(place), 1, {})


@pytest.mark.parametrize("column", ["prompt", "answer", "tests"])
def test_a_file_that_is_not_utf_8_says_so_and_what_to_do_whatever_the_column(
    column: str, tmp_path: Path
) -> None:
    lines = [{"prompt": f"{i}?", "answer": "1", "tests": [{"call": "f(1)"}]} for i in range(9)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    word = {"prompt": "8?", "answer": "1", "tests": "f(1)"}[column]
    (tmp_path / "a.jsonl").write_bytes((text[:-1].rpartition("\n")[0] + "\n").encode())
    with open(tmp_path / "a.jsonl", "ab") as file:
        file.write(json.dumps(lines[8]).replace(word, "caf\u00e9").encode("latin-1"))
    says = rf"is not UTF-8 in its column '{column}', rows 1 to 9 .*iconv -f LATIN1 -t UTF-8"
    with pytest.raises(TaskError, match=says):
        make(str(tmp_path / "a.jsonl"), 1, {})


def test_a_csv_file_that_is_not_utf_8_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("prompt,answer\ncaf\u00e9,1\n".encode("latin-1"))
    with pytest.raises(TaskError, match=r"a\.csv is not UTF-8 \(.*iconv"):
        make(str(tmp_path / "a.csv"), 1, {})


def packed(path: Path, lines: list[Any]) -> str:
    """A file of one of the kinds, packed as its name says."""
    inner = path.with_name("inner")
    kind = path.suffixes[0].lower()
    jsonl(inner, lines) if kind == ".jsonl" else comma(inner, lines, "\t" if kind == ".tsv" else ",")
    content = inner.read_bytes()
    inner.unlink()
    match path.suffix.lower():
        case ".gz":
            content = gzip.compress(content)
        case ".bz2":
            content = bz2.compress(content)
        case ".xz":
            content = lzma.compress(content)
        case ".zst":
            content = zstandard.compress(content)
        case ".zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("inner", content)
            return str(path)
    path.write_bytes(content)
    return str(path)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_the_text_of_messages_in_parts_is_joined(tmp_path: Path) -> None:
    lines = [{"prompt": [{"role": "user", "content": parts("1", f"+{i}")}], "answer": "2"} for i in range(9)]
    source = make(jsonl(tmp_path / "a.jsonl", lines), 1, {"held_out": 0})
    told = {source.task(index).messages for index in range(9)}
    assert told == {(Message(role="user", content=f"1+{i}"),) for i in range(9)}


CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (
            [
                {
                    "role": "user",
                    "content": [*parts("What?"), {"type": "image_url", "image_url": {"url": "x"}}],
                }
            ],
            "has a part of type 'image_url', which is not read (the first is row 2, message 1)",
        ),
        (
            [{"role": "user", "content": "1"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
            "has tool_calls, which are not read (the first is row 2, message 2)",
        ),
        (
            [
                {"role": "assistant", "content": "I add", "tool_calls": [CALL]},
                {"role": "tool", "content": "3"},
            ],
            "has tool_calls, which are not read (the first is row 2, message 1)",
        ),
        (
            [{"role": "user", "content": "1"}, {"role": "assistant", "content": None}],
            "has a message without content (the first is row 2, message 2)",
        ),
        ([{"role": "", "content": "1"}], "has a message without role (the first is row 2, message 1)"),
        ([{"content": "1"}], "has a message without role (the first is row 2, message 1)"),
    ],
)
def test_a_message_that_is_more_than_text_is_not_read_as_less(
    messages: list[Any], why: str, tmp_path: Path
) -> None:
    good = {"prompt": [{"role": "user", "content": parts("1+1")}], "answer": "2"}
    told: list[str] = []
    lines = [good, {"prompt": messages, "answer": "2"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    make(str(tmp_path / "a.jsonl"), 1, {}, say=told.append)
    assert told == [f"data:{tmp_path / 'a.jsonl'}: left out are 1 of 2 rows: 1 whose 'prompt' {why}"]


@pytest.mark.parametrize("answer", [["4", "four"], {"value": 4}, None, "", 4, "four"])
def test_where_nothing_compares_a_row_needs_no_answer_in_text_and_rewards_get_what_it_has(
    answer: object, tmp_path: Path
) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": f"{i}?", "answer": answer} for i in range(9)])
    source = make(path, 1, {"held_out": 0}, compared=False)
    assert len(source) == 9 and source.columns(source.task(0))["answer"] == answer


@pytest.mark.parametrize(("answer", "what"), [(["4", "four"], "list"), ({"value": 4}, "struct")])
def test_a_list_is_no_answer_that_something_compares_with(answer: object, what: str, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": f"{i}?", "answer": answer} for i in range(20)])
    with pytest.raises(
        TaskError, match=rf"20 of 20 rows: 20 whose 'answer' is a {what}, with which nothing can"
    ):
        make(path, 1, {})


def test_an_instruction_and_its_input_are_one_prompt(tmp_path: Path) -> None:
    lines = [{"instruction": "Add.", "input": f"{i} 1", "answer": str(i + 1)} for i in range(20)]
    lines += [{"instruction": "Say hello.", "input": "", "answer": "hello"}]
    told: list[str] = []
    path = jsonl(tmp_path / "a.jsonl", lines)
    source = make(path, 1, {}, say=told.append)
    tasks = [*map(source.task, range(len(source))), *source.held_out(99)]
    assert {task.prompt for task in tasks} == {"Say hello.", *(f"Add.\n{i} 1" for i in range(20))}
    assert not told and len(source.held_out(99)) >= 1
    alone = make(path, 1, {"prompt": "instruction"}, say=told.append)
    assert {alone.task(index).prompt for index in range(len(alone))} < {"Add.", "Say hello."}
    assert len(told) == 1 and "20 of 21 rows have the prompt of another row, with another answer" in told[0]


def test_a_column_inside_of_another_is_named_with_a_dot(tmp_path: Path) -> None:
    lines = [
        {"ask": {"text": f"{i}?"}, "reward_model": {"ground_truth": str(i), "style": {"kind": "rule"}}}
        for i in range(9)
    ]
    path = jsonl(tmp_path / "a.jsonl", lines)
    named = {"prompt": "ask.text", "answer": "reward_model.ground_truth", "held_out": 0}
    source = make(path, 1, named)
    tasks = [source.task(index) for index in range(9)]
    assert {(task.prompt, task.answer) for task in tasks} == {(f"{i}?", str(i)) for i in range(9)}
    row = source.columns(tasks[0])
    assert row["answer"] == tasks[0].answer and row["reward_model"]["style"] == {"kind": "rule"}
    says = (
        r"no column 'reward_model\.ground_trth' .*did you mean 'reward_model\.ground_truth'.*has ask, ask\.t"
    )
    with pytest.raises(TaskError, match=says):
        make(path, 1, {**named, "answer": "reward_model.ground_trth"})
    deep = make(path, 1, {**named, "answer": "reward_model.style.kind"})
    assert deep.task(0).answer == "rule"


NAMES = ["A.JSONL", "a.Csv", "a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl.zst", "a.jsonl.zip"]
NAMES += ["a.tsv.gz", "A.JSONL.GZ", "A.TSV"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_whatever_the_case_of_its_suffix_packed_or_not(name: str, tmp_path: Path) -> None:
    lines = [{"question": f"What is {i} + 1?", "answer": f"00{i + 1}"} for i in range(20)]
    expected = {(line["question"], line["answer"]) for line in lines}
    (tmp_path / "folder").mkdir()
    place = packed(tmp_path / "folder" / name, lines)
    (tmp_path / "folder" / "Notes.TXT").write_text("no data")
    for path in (place, str(tmp_path / "folder")):
        source = make(path, 1, {"held_out": 0})
        assert {(task.prompt, task.answer) for task in map(source.task, range(20))} == expected


def test_no_file_of_a_folder_is_lost_for_the_case_of_its_suffix(tmp_path: Path) -> None:
    jsonl(tmp_path / "train-a.jsonl", ROWS[:20])
    jsonl(tmp_path / "train-b.JSONL", ROWS[20:])
    jsonl(tmp_path / "test.Jsonl", [{"question": "held?", "answer": "1"}])
    source = make(str(tmp_path), 1, {"held_out_split": "test"})
    assert len(source) == len(ROWS) and [task.prompt for task in source.held_out(9)] == ["held?"]


def test_a_folder_with_files_of_several_kinds_is_refused_with_those_that_would_be_lost(
    tmp_path: Path,
) -> None:
    jsonl(tmp_path / "a.jsonl", ROWS[:9])
    jsonl(tmp_path / "b.json", ROWS[9:20])
    for name in ("config.json", ".notes.csv", "about.txt"):
        (tmp_path / name).write_text("{}")
    assert len(make(str(tmp_path), 1, {"held_out": 0})) == 20
    (tmp_path / "more").mkdir()
    comma(tmp_path / "more" / "c.csv", ROWS[20:])
    with pytest.raises(
        TaskError, match=r"several kinds \(2 of json, such as a\.jsonl; 1 of csv, such as more/c\.csv\)"
    ):
        make(str(tmp_path), 1, {})
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: '*.jsonl'\n---\n"
    )
    assert len(make(str(tmp_path), 1, {"held_out": 0})) == 9


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["007", "012", ""], ["007", "012"]),
        (["1.50", "2"], ["1.50", "2"]),
        (["true", "False"], ["true", "False"]),
        (["7", "-12", ""], [7, -12]),
        (["0.5", "2"], [0.5, 2]),
        (["x", "None", "NA"], ["x"]),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "folder", "described", "ada/codes"])
def test_answers_of_a_csv_file_are_what_it_says(
    written: list[str], read: list[Any], name: str, tmp_path: Path, hub: list[dict[str, Any]]
) -> None:
    lines = [{"prompt": f"{i}?", "answer": text} for i, text in enumerate(written)]
    comma(tmp_path / "a.csv", lines)
    if name == "described":
        (tmp_path / "README.md").write_text(
            "---\nconfigs:\n- config_name: default\n  data_files: '*.csv'\n---\n"
        )
    place = {"a.csv": str(tmp_path / name), "ada/codes": name}.get(name, str(tmp_path))
    source = make(place, 1, {"shuffle": False, "held_out": 0})
    tasks = [source.task(i) for i in range(len(source))]
    assert [task.answer for task in tasks] == [str(value) for value in read]
    assert [source.columns(task)["answer"] for task in tasks] == read


def test_a_hub_data_set_of_files_with_types_is_read_as_it_is(
    tmp_path: Path, hub: list[dict[str, Any]]
) -> None:
    jsonl(
        tmp_path / "a.jsonl", [{"prompt": f"{i}?", "answer": answer} for i, answer in enumerate(("007", "8"))]
    )
    source = make("ada/codes", 1, {"shuffle": False, "held_out": 0})
    assert [source.columns(source.task(i))["answer"] for i in range(2)] == ["007", "8"]
    assert len(hub) == 2 and "converters" not in hub[-1]


def test_a_copy_of_a_hub_data_set_whose_text_was_made_numbers_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comma(tmp_path / "a.csv", [{"prompt": "1?", "answer": "007"}])
    local = datasets.load_dataset

    def cached(name: str, *words: Any, revision: str | None = None, **more: Any) -> Any:
        if "converters" in more:
            raise ValueError("Couldn't find cache for ada/codes for config 'default-1'")
        return local(str(tmp_path), **more)

    monkeypatch.setattr(datasets, "load_dataset", cached)
    with pytest.raises(TaskError, match="data set ada/codes cannot be read: Couldn't find cache"):
        make("ada/codes", 1, {})


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (ConnectionError("Couldn't reach"), "not on this disk and the Hub cannot be reached"),
        (datasets.exceptions.DatasetNotFoundError("x/y is a gated dataset on the Hub"), "hf auth login"),
        (datasets.exceptions.DatasetNotFoundError("x/y doesn't exist"), "no data set org/name on the Hub"),
    ],
)
def test_what_the_hub_says_no_to_is_told_with_what_to_do(
    raised: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any, **more: Any) -> None:
        raise raised

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(TaskError, match=says):
        rows.read(rows.DatasetLocation("org/name"), "")
