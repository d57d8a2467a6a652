"""Where steps end: golden cases for text cut every possible way, and what must hold for any tokens at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from guerdon_services.models import LanguageModel
from guerdon_services.process_reward.prm import ImplicitPRM
from guerdon_services.process_reward.references import Frozen
from guerdon_services.process_reward.rewards import Rewards
from guerdon_services.process_reward.settings import ProcessRewardOptions
from guerdon_services.process_reward.steps import ends_in, step_ends, token_texts
from guerdon_services.scoring import ScoredSequence


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        ([], []),
        (["one"], [0]),
        (["one", "\n\n", "two"], [1, 2]),
        (["one", "\n", "\n", "two"], [2, 3]),  # a separator of two tokens
        (["one.\n\ntwo", " more"], [0, 1]),  # a separator inside a token: the step that ends there owns it
        (["one\n", "\ntwo", "\n\n"], [1, 2]),  # and across two; a trailing one starts no further step
        (["one\n\ntwo\n\nthree"], [0]),  # no token is left for two of the three steps
        (["one", "\n\n", "\n\n", "two"], [2, 3]),  # several in a row
        (["one", "\n\n", " \n\n", "two"], [2, 3]),  # with blanks between
        (["one", "\n\n\n\n\n", "two"], [1, 2]),
        (["one", "\n\n", " ", "\t"], [3]),  # a last step of whitespace only
        (["\n\n", "one", "\n\n", "two"], [2, 3]),  # a leading one
        (["\n\n", "\n\n"], [1]),  # nothing but separators
        (["", "", ""], [2]),  # nothing at all
        (["one", "", "\n\n", "", "two", ""], [2, 5]),  # tokens without text of their own
        (["one", "\n", " \n", "two"], [3]),  # no separator
    ],
)
def test_steps_end_with_their_separators(texts: list[str], ends: list[int]) -> None:
    assert ends_in(texts, "\n\n") == ends


def test_any_text_can_separate() -> None:
    assert ends_in(["Step 1", ": a", " ##", " b ##"], " ##") == [2, 3]
    assert ends_in(["a", "<step>", "b", "<step>", "</s>"], "<step>", blank={1, 3, 4}) == [1, 4]


def test_special_tokens_make_no_step(tiny_llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    ids = tokenizer("a\n\nb\n\n", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    assert step_ends(tokenizer, ids, "\n\n") == [2, 6]


def test_a_special_token_can_be_the_separator(tiny_llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    ids = tokenizer("a<|end|>b c<|end|>d", add_special_tokens=False)["input_ids"]
    assert step_ends(tokenizer, ids, "<|end|>") == [1, 5, 6]


@pytest.mark.parametrize("text", ["", "plain", "1 7\n\n>\n\n日本語 é 🙂\n\n", "🙂🙂\n\n \n\n"])
def test_token_texts_join_to_the_decoded_text(tiny_llama: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text


def test_a_character_of_several_tokens_belongs_to_the_last(tiny_llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    ids = tokenizer("日\n\né", add_special_tokens=False)["input_ids"]
    assert token_texts(tokenizer, ids) == ["", "", "日", "\n", "\n", "", "é"]
    assert step_ends(tokenizer, ids, "\n\n") == [4, 6]


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=40))
def test_bytes_that_are_no_text_are_cut_somewhere(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> None:
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    ends = step_ends(tokenizer, ids, "\n")
    assert ends == sorted(set(ends))
    assert ends[-1:] == [len(ids) - 1][: len(ids)]


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_llama)


_PIECES = st.sampled_from(["", "\n", "\n\n", "\n\n\n", " ", "a", "a\n", "\nb", "x\n\ny", "\n\nz\n\n"])


@given(texts=st.lists(_PIECES, max_size=30))
def test_steps_cover_the_response_in_order(texts: list[str]) -> None:
    ends = ends_in(texts, "\n\n")
    assert ends == sorted(set(ends))
    assert ends[-1:] == ([len(texts) - 1] if texts else [])
    # No step but a lone one is blank, unless the text that was its own lies in the token before it.
    pieces = [piece for piece in "".join(texts).split("\n\n") if piece.strip()]
    assert len(ends) <= max(len(pieces), 1)


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.sampled_from([10, 32, 64, 65, 198, 256, 258]), max_size=40), data=st.data())
def test_every_step_gets_the_sum_of_its_tokens(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], data: st.DataObject
) -> None:
    # Multiples of 1/64: every sum of them is exact.
    ratios = data.draw(st.lists(st.integers(-640, 640), min_size=len(ids), max_size=len(ids)))
    ratios_T = torch.tensor(ratios, dtype=torch.float32) / 64
    rewards = Rewards(LanguageModel(Any, tokenizer), beta=0.5, chat_template=None)  # pyright: ignore
    newline = str(tokenizer.decode([198]))
    options = ProcessRewardOptions(granularity="step", step_separator=newline)
    sequence = ScoredSequence([1], ids)
    token_T, step_T = (
        rewards.token_rewards([sequence], [ratios_T], given)[0] for given in (ProcessRewardOptions(), options)
    )
    ends = step_ends(tokenizer, ids, newline)
    start = 0
    for end in ends:
        assert step_T[end] == token_T[start : end + 1].sum()
        start = end + 1
    assert step_T.sum() == token_T.sum() == ratios_T.double().sum() / 2
    elsewhere = [float(reward) for at, reward in enumerate(step_T) if at not in ends]
    assert set(elsewhere) <= {0.0}


def test_the_whole_response_gets_its_sum_where_the_recipe_raises(
    shared: Path, table_model: Callable[[Any], Any], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Disputed vector: the recipe writes a vector into a scalar cell; the released code, and we, write the sum."""
    data = json.loads((shared / "vectors" / "prime_reward__verl_recipe_whole.json").read_text())
    inputs, beta = data["inputs"], data["parameters"]["beta_train"]
    policy, reference = table_model(inputs["policy_table"]), table_model(inputs["ref_table"])
    prm = ImplicitPRM(
        policy,
        Frozen(reference),
        torch.optim.SGD(policy.parameters()),
        grad_clip=1.0,
        max_tokens=100,
    )
    sequences = [
        ScoredSequence(ids[:2], ids[2 : sum(mask)])
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    ]
    ratios = prm.log_ratios(sequences, temperature=1.0)
    rewards = Rewards(LanguageModel(policy, tokenizer), beta=beta, chat_template=None).token_rewards(
        sequences, ratios, ProcessRewardOptions(granularity="response")
    )
    assert data["outputs"]["raises"]["error_type"] == "RuntimeError"
    for row, ratios_T in zip(rewards, ratios, strict=True):
        assert row[:-1].tolist() == [0.0] * (len(row) - 1)
        torch.testing.assert_close(row[-1], beta * ratios_T.double().sum(), atol=1e-8, rtol=1e-6)
