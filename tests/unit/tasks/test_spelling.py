"""Numbers as answers: from the file of a data set to the reward they keep their digits and their spelling."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swarm.settings.config import TaskSettings
from swarm.tasks import catalog
from swarm.tasks.base import TaskError
from swarm.tasks.data import dataset, task_files
from swarm.tasks.rewards import spelling

BIG = "123456789012345678901234567890"

LINES = [
    # as the file writes it, as a completion says it
    ("0.00001", "0.00001"),
    ("1e-05", "0.00001"),
    ("2.5e-7", "0.00000025"),
    ("1e22", "10000000000000000000000"),
    ("2.50", "2.50"),
    ("3.0", "3"),
    ("-0.0", "0"),
    ("7", "7"),
    ("9007199254740993", "9007199254740993"),
    ("0.1234567890123456789", "0.1234567890123456789"),
    ('"007"', "007"),
    ('"2.50"', "2.50"),
    ('"2023-05-01"', "2023-05-01"),
    ("true", "True"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def answers(path: Path) -> list[str]:
    source = dataset.make(str(path), 1, {"held_out": 0.0, "shuffle": False})
    return [source.task(index).answer for index in range(len(source))]


def written(path: Path, values: Sequence[str]) -> Path:
    rows = [f'{{"question": "q{i}", "answer": {value}}}' for i, value in enumerate(values)]
    path.write_text(f"[{', '.join(rows)}]" if path.suffix == ".json" else "\n".join(rows))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize(("value", "said"), LINES)
@pytest.mark.parametrize("beside", ["0.5", "12", '"x"', "null"])
def test_a_number_of_json_is_the_text_that_the_file_has(
    name: str, value: str, said: str, beside: str, tmp_path: Path
) -> None:
    assert answers(written(tmp_path / name, [value, beside]))[0] == said


def test_a_whole_number_of_any_length_keeps_its_digits_where_json_is_lines_and_is_else_to_be_text(
    tmp_path: Path,
) -> None:
    for beside in ("0.5", "12", "null"):
        assert answers(written(tmp_path / "a.jsonl", [BIG, beside]))[0] == BIG
        with pytest.raises(TaskError, match="more than 64 bits; write it as text, in quotes"):
            answers(written(tmp_path / "a.json", [BIG, beside]))
        assert answers(written(tmp_path / "b.json", [f'"{BIG}"', beside]))[0] == BIG


def test_numbers_of_csv_are_what_is_written(tmp_path: Path) -> None:
    values = ["0.00001", "2.50", "1e-5", BIG, "3.0"]
    (tmp_path / "a.csv").write_text(
        "question,answer\n" + "\n".join(f"q{i},{v}" for i, v in enumerate(values))
    )
    assert answers(tmp_path / "a.csv") == values


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([0.1, 1e-5, 2.5, 3.0, 1e22], pa.float32()), ["0.1", "0.00001", "2.5", "3", "1" + 22 * "0"]),
        (pa.array([numpy.float16(0.1), numpy.float16(2.5)], pa.float16()), ["0.1", "2.5"]),
        (pa.array([0.1, 1e-5, 1e22, -0.0]), ["0.1", "0.00001", "1" + 22 * "0", "0"]),
        (pa.array([Decimal("2.50"), Decimal("0.01")], pa.decimal128(10, 2)), ["2.50", "0.01"]),
        (pa.array([2**64 - 1, 1], pa.uint64()), [str(2**64 - 1), "1"]),
        (pa.array([True, False]), ["True", "False"]),
        (pa.array([datetime.date(2023, 5, 1)]), ["2023-05-01"]),
        (pa.array([datetime.datetime(2023, 5, 1), datetime.datetime(2023, 5, 1, 9, 30)]), None),
        (pa.array([datetime.time(10, 30)]), ["10:30:00"]),
    ],
)
def test_numbers_and_dates_of_parquet_are_written_in_full(
    column: Any, said: list[str] | None, tmp_path: Path
) -> None:
    table = pa.table({"question": [f"q{i}" for i in range(len(column))], "answer": column})
    pq.write_table(table, tmp_path / "a.parquet")
    assert answers(tmp_path / "a.parquet") == (said or ["2023-05-01", "2023-05-01 09:30:00"])


@pytest.fixture
def scored(tmp_path: Path) -> Iterator[Any]:
    """A source of answers as JSON writes them: as a run carries it, and from the file."""
    (tmp_path / "mine.py").write_text(
        "def near(completions, answer, **columns):\n"
        "    return [float(abs(float(c) - gold) < 1e-9) for c, gold in zip(completions, answer)]\n"
    )
    made = []

    def make(values: Sequence[str], *rewards: str, carried: bool) -> Any:
        path = written(tmp_path / "a.jsonl", values)
        settings = TaskSettings(
            name=f"data:{path}", rewards=rewards, options={"held_out": 0.0, "shuffle": False}
        )
        if carried:
            task_files.pack(settings, tmp_path / "run" / "task")
        made.append(catalog.source(settings, 1, folder=tmp_path / "run" / "task" if carried else None))
        return made[-1]

    yield make
    for source in made:
        source.close()


@pytest.mark.parametrize("carried", [False, True])
def test_the_right_answer_earns_whatever_the_file_calls_the_number(scored: Any, carried: bool) -> None:
    values = ["0.00001", "2.5e-7", "2.50", BIG, "1e22", "0.5"]
    says = ["0.00001", "0.00000025", "2.50", BIG, "1" + 22 * "0", "0.5"]
    for reward in ("exact", "math"):
        source = scored(values, reward, carried=carried)
        for index, said in enumerate(says):
            right, wrong = source.rewards(source.task(index), [said, "17"])
            assert (right, wrong) == (1.0, 0.0), (reward, said)


@pytest.mark.parametrize("carried", [False, True])
def test_a_reward_of_ones_own_computes_with_the_number(scored: Any, tmp_path: Path, carried: bool) -> None:
    source = scored(["2.50", "1e-05", "3.0"], f"{tmp_path}/mine.py:near", carried=carried)
    assert [source.rewards(source.task(i), ["2.5", "0.00001", "3"]) for i in range(3)] == [
        [1.0, 0.0, 0.0],
        [0.0, 1.0, 0.0],
        [0.0, 0.0, 1.0],
    ]


def test_a_whole_number_too_large_for_an_integer_of_a_message_costs_no_group(scored: Any) -> None:
    source = scored(["1e22", "0.5"], "math", carried=False)
    assert source.rewards(source.task(0), ["10000000000000000000000"]) == [1.0]


def test_rows_that_are_not_those_of_the_file_are_left_as_they_are(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"answer": 2.5}])
    (tmp_path / "a.jsonl").write_text('{"answer": 2.50}\n{"answer": 2.5}\n')
    assert spelling.kept(rows, [tmp_path / "a.jsonl"], ["answer"]).column_names == ["answer"]
    (tmp_path / "a.jsonl").write_text(json.dumps({"answer": 3.5}))
    assert spelling.kept(rows, [tmp_path / "a.jsonl"], ["answer"]).column_names == ["answer"]
