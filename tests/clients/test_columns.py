"""Rows of data sets as samples: the usual names, named columns, conversations, tests and special tokens."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from guerdon.columns import Columns, labelled, references_of, task_in
from guerdon.errors import InvalidRequest
from guerdon.texts import prompt_of, response_in, text_of, without_end_tokens
from guerdon.types import ChatMessage, Sample


def test_the_usual_names() -> None:
    row = {"problem": "1+1", "completion": "2", "answer": 2, "solution": "It is 2."}
    assert Columns().sample(row, id="7") == Sample(
        id="7", prompt="1+1", prompt_token_ids=[], response="2", response_token_ids=[], references=["2"]
    )
    # verl's rows nest the answer.
    assert Columns().sample({"reward_model": {"ground_truth": "2"}}).references == ["2"]


def test_columns_that_are_named_must_be_there() -> None:
    row = {"a": {"b": ["x", "y"]}, "r": "z", "level": 3, "answer": "no"}
    columns = Columns(references="a.b", response="r", metadata=("level",))
    sample = columns.sample(row)
    assert (sample.response, sample.references, sample.metadata) == ("z", ["x", "y"], {"level": 3})
    with pytest.raises(InvalidRequest, match="references: the row has no column 'c'; it has a, r, level"):
        Columns(references="c").sample(row)


def test_the_whole_row_and_its_tests() -> None:
    row = {"inputs": ["1\n"], "outputs": ["2\n"], "response": "print(2)"}
    sample = Columns(whole_row=True).sample(row)
    assert sample.metadata == {"row": row}
    task = Columns(code="truth").sample({"truth": '{"inputs": ["1"], "outputs": ["2"]}'}).code
    assert task is not None
    assert [(test.input, test.output) for test in task.tests] == [("1", "2")]
    assert Columns(code="task").sample({"task": task.model_dump(exclude_unset=True)}).code == task
    with pytest.raises(InvalidRequest, match="code: row"):
        Columns(code="truth").sample({"truth": {"nothing": 1}})


@pytest.mark.parametrize(
    ("value", "references"),
    [
        (None, []),
        ("3/4", ["3/4"]),
        (0.5, ["0.5"]),
        (["a", 1], ["a", "1"]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.int64(3), ["3"]),
        ({"a": 1}, ['{"a": 1}']),
        (True, ["true"]),
        # What a data frame has for a cell without a value: judged as an answer, it would make every response wrong.
        (math.nan, []),
        (np.array(["a", None], dtype=object), ["a"]),
        (Decimal("0.5"), ["0.5"]),
    ],
)
def test_right_answers(value: Any, references: list[str]) -> None:
    assert references_of(value) == references


def test_a_ground_truth_is_an_answer_unless_it_looks_like_tests() -> None:
    assert task_in("42") is None
    assert task_in("{1, 2, 3}") is None
    assert task_in({"nothing": 1}) is None
    assert task_in('{"inputs": ["1"], "outputs": ["2"]}') is not None


def test_conversations() -> None:
    turns = [
        {"role": "assistant", "content": "hm"},
        {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
    ]
    assert text_of(turns) == "4"
    # Nobody has answered, which is no empty answer.
    assert text_of([{"role": "tool", "content": "x"}]) is None
    assert text_of([{"role": "assistant", "tool_calls": []}]) == ""
    assert text_of(np.array([{"role": "assistant", "content": "2"}])) == "2"
    assert text_of({"role": "assistant", "content": None}) == ""
    prompt = Columns().prompt_of({"prompt": [{"role": "user", "content": "1+1"}]})
    assert prompt == [ChatMessage(role="user", content="1+1")]


@pytest.mark.parametrize(
    ("query", "prompt", "response"),
    [
        ("<s>Q: 1+1 A:2</s>", "Q: 1+1 A:", "2"),
        ("<|im_start|>user\n1+1<|im_end|>\n4<|im_end|>\n", "<|im_start|>user\n1+1<|im_end|>\n", "4"),
        ("x<end_of_turn><eos>", "", "x"),
        ("no prompt in it", "other", "no prompt in it"),
        ("1 </s> 2", "", "1 </s> 2"),
    ],
)
def test_the_response_in_a_whole_text(query: str, prompt: str, response: str) -> None:
    assert response_in(query, prompt) == response


def test_many_end_tokens_take_no_time() -> None:
    assert without_end_tokens("x" + " \n" * 20_000 + "y") == "x" + " \n" * 20_000 + "y"


@pytest.mark.parametrize(
    "value", [b"2", {2}, object(), [b"2"], [10**5000]], ids=["bytes", "set", "object", "list", "huge"]
)
def test_what_is_no_right_answer_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="references: "):
        references_of(value)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b"2", "response: must be text, not bytes"),
        ({"text": "2"}, "response: an object needs content; this one has text"),
        (["2"], "response.0: a turn must be an object, not str"),
        ([7, 8], "response.0"),
        ([{"role": "assistant", "content": 2}], "response.content"),
        ([{"role": "assistant", "content": ["2"]}], "response.content.0"),
        ([{"role": "assistant", "content": [{"type": "text", "text": 2}]}], "response.content.text"),
    ],
)
def test_a_response_of_no_known_shape_is_not_taken_for_an_empty_one(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        text_of(value)


def test_prompts() -> None:
    asked = [ChatMessage(role="user", content="1+1")]
    for value in ([{"content": "1+1"}], {"content": "1+1"}, np.array([{"role": "user", "content": "1+1"}])):
        assert prompt_of(value) == asked
    assert [prompt_of(value) for value in (None, math.nan, [], 7)] == [None, None, None, "7"]
    with pytest.raises(InvalidRequest, match="prompt"):
        prompt_of(["1+1"])


def test_a_label_is_an_answer_or_tests() -> None:
    metadata = {"levels": np.array([np.array([1, 2])], dtype=object)}
    assert labelled("q", "2", "2", metadata).metadata == {"levels": [[1, 2]]}
    tested = labelled("q", "2", {"inputs": ["1"], "outputs": ["2"]})
    assert (tested.references, tested.code is not None) == ([], True)
    with pytest.raises(InvalidRequest, match="metadata"):
        labelled("q", "2", "2", {"level": object()})


def test_an_empty_column_is_said_to_be_empty() -> None:
    for value in (None, math.nan):
        with pytest.raises(InvalidRequest, match="references: the row's column 'gold' is empty"):
            Columns(references="gold").sample({"gold": value, "answer": "2", "response": "2"})
    assert Columns().sample({"references": math.nan, "answer": "2", "response": "2"}).references == ["2"]
