"""A response over many lives of an engine: whenever they end, it is what one life would have made of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from guerdon_services.rollout.engine import Row
from guerdon_services.rollout.engines.growing import Ending, Growing, Tokens
from guerdon_services.rollout.engines.stopping import StopStrings, decode
from tests.services.conftest import byte_tokenizer
from tests.services.rollout.test_vllm_streams import Heard

PROMPT = (60, 61)
END = 65
ROW = Row(
    prompt_ids=PROMPT, max_new_tokens=12, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=None,
    stop_token_ids=(END,),
)  # fmt: skip


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


def output(place: int, token_ids: Sequence[int], finish_reason: str | None, stop_reason: Any) -> Any:
    return SimpleNamespace(
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        token_ids=list(token_ids),
        logprobs=SimpleNamespace(logprobs=[-float(place + step) for step in range(len(token_ids))]),
        weight_versions=[SimpleNamespace(version="0")] if finish_reason else None,
    )


def life(row: Row, drawn: Sequence[int], step: int) -> Iterator[Any]:
    """What vLLM says of a row for which it draws `drawn`, of which the prompt may have some; by `step` tokens."""
    had = len(row.prompt_ids) - len(PROMPT)
    assert row.prompt_ids == (*PROMPT, *drawn[:had])
    strings = StopStrings(tokenizer(), row.stop, ignored=row.min_new_tokens)
    news: list[int] = []
    said: list[int] = []
    for token in drawn[had:]:
        said.append(token)
        news.append(token)
        finish: tuple[str | None, Any] = (None, None)
        if token in row.stop_token_ids and len(said) > row.min_new_tokens:
            finish = ("stop", token)
        elif strings.cut(said) is not None:
            finish = ("stop", "a stop string")
        elif len(said) == row.max_new_tokens:
            finish = ("length", None)
        if finish[0] or len(news) == step:
            yield output(had + len(said) - len(news), news, *finish)
            news = []
        if finish[0]:
            return


def lived(row: Row, drawn: Sequence[int], lives: Sequence[int], step: int) -> tuple[Ending, Heard]:
    """The response, and what was heard of it; each life but the last ends after so many outputs."""
    heard = Heard(tokens=True)
    growing = Growing(replace(row, listener=cast(Any, heard)), tokenizer(), 0)
    for outputs in (*lives, len(drawn) + 1):
        growing.check()
        for number, one in enumerate(life(growing.begin(), drawn, step)):
            if number == outputs:
                break
            news = growing.take(one, 0)
            if isinstance(news, Ending):
                return news, heard
            growing.give(news)
    raise AssertionError("it has no end")


@given(
    drawn=st.lists(st.sampled_from([*range(64, 76), 102, 127, 220, 258]), min_size=12, max_size=12),
    stops=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 3)), max_size=2),
    least=st.integers(0, 8),
    how=st.sampled_from([{}, {"seed": 3}, {"presence_penalty": 0.5, "temperature": 0.0}]),
    lives=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    step=st.integers(1, 3),
)
def test_deaths_change_nothing(
    drawn: list[int],
    stops: list[tuple[int, int]],
    least: int,
    how: dict[str, Any],
    lives: list[int],
    step: int,
) -> None:
    stop = [decode(tokenizer(), drawn[first : first + size]) for first, size in stops]
    row = replace(ROW, max_new_tokens=len(drawn), stop=tuple(filter(None, stop)), min_new_tokens=least, **how)
    once, _ = lived(row, drawn, [], step)
    often, heard = lived(row, drawn, lives, step)
    assert (often.tokens, often.finish_reason) == (once.tokens, once.finish_reason)
    assert isinstance(often.stop_reason, str) == isinstance(once.stop_reason, str)
    assert often.tokens.logprobs == [-float(place) for place in range(len(often.tokens.ids))]
    given = [token for piece in heard.pieces for token in piece.token_ids]
    assert given == often.tokens.ids[: len(given)]
    assert len(given) < len(often.tokens.ids)
    assert set(often.versions) == {0}


@pytest.mark.parametrize("how", [{}, {"seed": 3}])
def test_weights_that_come_between_two_lives_did_not_begin_it(how: dict[str, Any]) -> None:
    row = replace(ROW, max_new_tokens=2, listener=cast(Any, Heard(tokens=True)), **how)
    growing = Growing(row, tokenizer(), 0)
    growing.begin()
    first = growing.take(output(0, [70], None, None), 0)
    assert isinstance(first, Tokens)
    growing.give(first)
    row = growing.begin()
    again = [] if len(row.prompt_ids) > len(PROMPT) else [70]
    last = output(1 - len(again), [*again, 71], "length", None)
    last.weight_versions = [SimpleNamespace(version="1")]
    end = growing.take(last, 1)
    assert isinstance(end, Ending)
    assert (end.tokens, end.versions) == (Tokens([70, 71], [0.0, -1.0]), (0, 1))
