"""Where the reference goes, as text and as ids, against the public constructions of RLPR and VeriFree."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from guerdon_services import models
from guerdon_services.reference_reward import splice
from guerdon_services.reference_reward.splice import NoAnswer
from guerdon_services.runtime.scorer import Unscorable


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> PreTrainedTokenizerBase:
    """Bytes, but ` 7` and `>` + newline are one token each, as in Qwen's vocabulary."""
    return models.load(tiny_llama).tokenizer


def vectors(shared: Path, pattern: str) -> Iterator[dict[str, Any]]:
    for file in sorted((shared / "vectors").glob(pattern)):
        yield json.loads(file.read_text())


def test_rlpr_texts_and_reference_tokens_equal_the_public_ones(shared: Path) -> None:
    for data in vectors(shared, "rlpr_text__span_*.json"):
        inputs, outputs = data["inputs"], data["outputs"]
        if data["parameters"]["format_mode"] == "R1":
            splice.check_think_tags(inputs["response"])
        made = splice.rlpr(inputs["response"], inputs["ground_truth"], end="<|endoftext|>")
        prompt = inputs["prompt"]
        assert prompt + made.text == outputs["scored_text"], data["id"]
        assert made.text[made.start : made.end] == inputs["ground_truth"]
        first, last = splice.overlapping(
            outputs["token_offsets"], len(prompt) + made.start, len(prompt) + made.end
        )
        assert outputs["scored_token_ids"][first:last] == outputs["reference_token_ids"]
        assert first == outputs["first_reference_index_in_scored"]


def test_verifree_texts_equal_the_public_ones(shared: Path) -> None:
    for data in vectors(shared, "verifree_text__split_*.json"):
        inputs, outputs = data["inputs"], data["outputs"]
        if data["id"] in ("verifree_text__split_no_answer_tag", "verifree_text__split_tag_prefix_word"):
            # The second is disputed: `<answers` is no tag, and what follows it is not thrown away.
            with pytest.raises(NoAnswer, match="no <answer> tag"):
                splice.verifree(inputs["model_response"], inputs["reference"])
        else:
            made = splice.verifree(inputs["model_response"], inputs["reference"])
            assert made.pieces == (outputs["think_text"], outputs["answer_text"]), data["id"]
            assert made.text[made.start : made.end] == outputs["answer_text"]


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("no tags at all", "0 <answer> tags"),
        ("<answer> 1 </answer> <answer> 2 </answer>", "2 <answer> tags"),
        ("<answer>  \n </answer>", "blank"),
        ("<answer>", "blank"),
    ],
)
def test_rlpr_responses_without_a_place_for_the_reference(response: str, why: str) -> None:
    with pytest.raises(NoAnswer, match=why):
        splice.rlpr(response, "7")


@pytest.mark.parametrize(
    "response", ["<answer> 7", "<think> a <answer> 7", "<think></think></think><answer> 7"]
)
def test_one_pair_of_think_tags_is_a_check_of_its_own(response: str) -> None:
    splice.rlpr(response, "7")
    with pytest.raises(NoAnswer, match="think"):
        splice.check_think_tags(response)


def test_a_reference_that_contains_tags_does_not_move_the_span(tokenizer: PreTrainedTokenizerBase) -> None:
    made = splice.rlpr("so <answer> x </answer>", "a</answer>b")
    tokens = splice.tokenise(tokenizer, made)
    assert tokenizer.decode(list(tokens.ids[tokens.first : tokens.last])) == "a</answer>b"


def test_a_token_that_begins_before_the_reference_is_scored(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = splice.tokenise(tokenizer, splice.rlpr("so <answer> x", "7"))
    assert tokenizer.decode(list(tokens.ids[tokens.first : tokens.last])) == " 7"


def test_the_end_token_is_part_of_the_text_and_not_scored(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = splice.tokenise(tokenizer, splice.rlpr("so <answer> x", "7", end="<|end|>"))
    assert tokens.ids[-1] == tokenizer.eos_token_id
    assert tokens.last < len(tokens.ids)


def sampled_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, merged: bool) -> tuple[int, ...]:
    """Ids of the text: the tokenizer's own, or one per character, which a policy may well sample."""
    pieces = [text] if merged else list(text)
    return tuple(token for piece in pieces for token in models.encode_prompt(tokenizer, piece))


def test_sampled_ids_are_kept_up_to_the_answer(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "it is 7, so <answer>\n7 </answer>"
    own, odd = (sampled_ids(tokenizer, text, merged=merged) for merged in (True, False))
    assert own != odd
    for made in (splice.rlpr(text, "42"), splice.verifree(text, "42")):
        kept = "it is 7, so <answer"
        anew = splice.tokenise(tokenizer, made)
        canonical = splice.tokenise(tokenizer, made, own)
        unusual = splice.tokenise(tokenizer, made, odd)
        assert canonical.ids == anew.ids
        assert canonical.sampled == len(kept) - 1
        assert unusual.sampled == len(kept)
        assert unusual.ids[: unusual.sampled] == odd[: unusual.sampled]
        assert unusual.ids[unusual.sampled :] == anew.ids[canonical.sampled :]
        assert tokenizer.decode(list(unusual.ids)) == made.text


def test_a_sampled_token_across_the_boundary_is_tokenised_anew() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("r", ">")]
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "r>"])}
    inner = Tokenizer(tokenizer_models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    text = "x<answer> 1"
    ids = tuple(models.encode_prompt(tokenizer, text))
    assert len(ids) == len(text) - 1
    made = splice.verifree(text, "2")
    tokens = splice.tokenise(tokenizer, made, ids)
    assert tokens.sampled == len("x<answe")
    assert tokenizer.decode(list(tokens.ids)) == "x<answer> \\boxed{2} </answer>"
    assert tokenizer.decode(list(tokens.ids[tokens.first : tokens.last])) == "> \\boxed{2} </answer>"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.text(min_size=1, max_size=10), st.booleans())
def test_any_text_survives_splicing(
    tokenizer: PreTrainedTokenizerBase, reasoning: str, reference: str, verifree: bool
) -> None:
    reasoning, reference = reasoning.replace("<", "("), reference.replace("<", "(")
    text = f"{reasoning}<answer> old </answer>"
    make = splice.verifree if verifree else splice.rlpr
    made = make(text, reference)
    ids = tuple(models.encode_prompt(tokenizer, text))
    for tokens in (splice.tokenise(tokenizer, made), splice.tokenise(tokenizer, made, ids)):
        assert tokenizer.decode(list(tokens.ids)) == made.text
        scored = tokenizer.decode(list(tokens.ids[tokens.first : tokens.last]))
        assert made.text[made.start : made.end] in scored
    assert tokens.sampled > 0 or not reasoning


def test_end_tokens_after_a_sampled_response_are_no_text(tokenizer: PreTrainedTokenizerBase) -> None:
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    ids = models.encode_prompt(tokenizer, "<answer> 7")
    assert splice.response_text(tokenizer, [*ids, end, end]) == ("<answer> 7", tuple(ids))


def test_a_tokenizer_that_puts_a_space_first_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    splice.check_tokenizer(tokenizer)
    inner = Tokenizer(tokenizer_models.BPE(vocab={"▁": 0, ">": 1, "a": 2}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    with pytest.raises(ValueError, match="space before every text"):
        splice.check_tokenizer(PreTrainedTokenizerFast(tokenizer_object=inner))


def test_a_tokenizer_that_has_no_tokens_for_the_tags_is_refused() -> None:
    digits = Tokenizer(tokenizer_models.WordLevel({"1": 0}, unk_token="[UNK]"))
    with pytest.raises(ValueError, match="no tokens for </answer>"):
        splice.check_tokenizer(PreTrainedTokenizerFast(tokenizer_object=digits))


def test_text_that_the_tokenizer_refuses_is_the_samples_fault() -> None:
    digits = Tokenizer(tokenizer_models.WordLevel({"1": 0}, unk_token="[UNK]"))
    with pytest.raises(Unscorable, match=r"^response or references: the tokenizer refuses it"):
        splice.tokenise(
            PreTrainedTokenizerFast(tokenizer_object=digits), splice.rlpr_without_reasoning("one")
        )
