"""The span is where the reference stands, in characters and in tokens, whatever the response looks like."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from guerdon.types import Result, Sample, Span, Status
from guerdon_services import models
from guerdon_services.reference_reward import splice
from guerdon_services.reference_reward.service import ReferenceRewardScorer
from guerdon_services.reference_reward.settings import (
    CustomTemplate,
    ReferenceRewardOptions,
    ReferenceRewardSettings,
)
from guerdon_services.runtime.scorer import ScoreJob, Unscorable

PROMPT = "3+4="


@pytest.fixture(scope="module")
def scorer(tiny_qwen2: Path) -> ReferenceRewardScorer:
    scorer = ReferenceRewardScorer(ReferenceRewardSettings(model=tiny_qwen2))
    scorer.open()
    return scorer


def score(scorer: ReferenceRewardScorer, sample: Sample, **options: Any) -> Result:
    return scorer.score([ScoreJob(sample, ReferenceRewardOptions(**options))])[0]


def span_of(result: Result) -> Span:
    assert result.status is Status.OK, result.reason
    assert result.verdict is not None
    assert result.verdict.span is not None
    return result.verdict.span


CASES = {
    "plain": ("so <answer> 8 </answer>", "12", "so <answer> 12 </answer>"),
    "no space": ("so <answer>8</answer>", "12", "so <answer> 12 </answer>"),
    "CRLF": ("so\r\n<answer>\r\n8\r\n</answer>\r\n", "12", "so\r\n<answer>\r\n12 </answer>"),
    "newlines": ("so\n<answer>\n\n8", "12", "so\n<answer>\n\n12 </answer>"),
    "truncated": ("so <answer> 8 and th", "12", "so <answer> 12 </answer>"),
    "cut in the closing tag": ("so <answer> 8 </ans", "12", "so <answer> 12 </answer>"),
    "LaTeX": ("so <answer> 8 </answer>", "\\frac{1}{2}", "so <answer> \\frac{1}{2} </answer>"),
    "backslashes": ("so <answer> 8 </answer>", "a\\\\b\\n\\g<0>", "so <answer> a\\\\b\\n\\g<0> </answer>"),
    "braces": ("so <answer> 8 </answer>", "{reference}", "so <answer> {reference} </answer>"),
    "tags": ("so <answer> 8 </answer>", "<answer>7</answer>", "so <answer> <answer>7</answer> </answer>"),
    "characters": ("já 数 🎉 <answer> 8", "½ 数🎉", "já 数 🎉 <answer> ½ 数🎉 </answer>"),
    "padded reference": ("so <answer> 8 </answer>", "\n 12\t", "so <answer> 12 </answer>"),
    "another word": ("<answers> <answer> 8 </answer>", "12", "<answers> <answer> 12 </answer>"),
    "after the answer": ("so <answer> 8 </answer> or <b>", "12", "so <answer> 12 </answer>"),
}


@pytest.mark.parametrize("case", CASES)
def test_spans_of_text_and_of_sampled_ids(scorer: ReferenceRewardScorer, tiny_qwen2: Path, case: str) -> None:
    response, reference, scored = CASES[case]
    tokenizer = models.load_tokenizer(tiny_qwen2)
    by_text = score(scorer, Sample(prompt=PROMPT, response=response, references=[reference]))
    span = span_of(by_text)
    assert scored[span.start : span.end] == reference.strip()
    # One id per byte, as this tokenizer's vocabulary nearly is, and as a policy may sample any text.
    vocabulary = cast(dict[str, int], tokenizer.get_vocab())
    ids = [vocabulary[_SYMBOLS[byte]] for byte in response.encode()]
    by_ids = score(scorer, Sample(prompt=PROMPT, response_token_ids=ids, references=[reference]))
    by_ids_span = span_of(by_ids)
    assert (by_ids_span.start, by_ids_span.end) == (span.start, span.end)
    before = response.split("<answer>")[0] + "<answer"
    kept = len(before.encode())
    assert f"{kept} sampled tokens" in by_ids.reason
    assert (by_ids_span.sampled_tokens, span.sampled_tokens) == (kept, 0)
    assert by_ids.token_ids == by_text.token_ids
    assert by_ids_span.token_end - by_ids_span.token_start == len(by_ids.token_ids)
    assert _text(tokenizer, by_ids.token_ids).strip() == reference.strip()
    anew = models.encode_prompt(tokenizer, scored[len(before) :])
    full = ids[:kept] + anew
    assert full[by_ids_span.token_start : by_ids_span.token_end] == by_ids.token_ids


def _byte_symbols() -> dict[int, str]:
    """GPT-2's table of bytes and the characters that stand for them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


_SYMBOLS = _byte_symbols()


@pytest.mark.parametrize(
    ("response", "template", "why"),
    [
        ("so <answer> </answer>", "rlpr", "blank"),
        ("so <answer>\r\n</answer> 7", "rlpr", "blank"),
        ("so <answer> 1 </answer> <answer> 2 </answer>", "rlpr", "2 <answer> tags"),
        ("<answers> 7", "rlpr", "0 <answer> tags"),
        ("<answers> 7", "verifree", "no <answer> tag"),
        ("so <answ", "rlpr", "0 <answer> tags"),
        ("so <answ", "verifree", "no <answer> tag"),
    ],
)
def test_responses_without_a_place_have_no_span(
    scorer: ReferenceRewardScorer, response: str, template: str, why: str
) -> None:
    result = score(scorer, Sample(prompt=PROMPT, response=response, references=["7"]), template=template)
    assert (result.status, result.value) == (Status.OK, 0.0)
    assert why in result.reason
    assert result.verdict is not None
    assert result.verdict.span is None
    assert result.verdict.extracted is None


@pytest.mark.parametrize(
    "response", ["so <answer> </answer>", "so <answer", "<answer> 1 <answer> 2", "<answer>"]
)
def test_verifree_wants_a_tag_and_nothing_more(scorer: ReferenceRewardScorer, response: str) -> None:
    result = score(scorer, Sample(prompt=PROMPT, response=response, references=["7"]), template="verifree")
    span = span_of(result)
    think = response[: response.index("<answer") + len("<answer")]
    assert (span.start, span.end) == (len(think), len(think) + len("> \\boxed{7} </answer>"))


def test_a_response_cut_within_a_character_keeps_its_ids(
    scorer: ReferenceRewardScorer, tiny_qwen2: Path
) -> None:
    """A policy that stops at its length limit may leave half of a character, before the answer or in it."""
    tokenizer = models.load_tokenizer(tiny_qwen2)
    for text, cut in (("é <answer> 8 数", 2), ("<answer> 数", 1)):
        ids = models.encode_prompt(tokenizer, text)[:-cut]
        result = score(scorer, Sample(prompt=PROMPT, response_token_ids=ids, references=["数"]))
        span = span_of(result)
        assert span.token_start == len((text.split("<answer>")[0] + "<answer> ").encode())
        assert span.token_end - span.token_start == 3
    broken = [*models.encode_prompt(tokenizer, "数")[:2], *models.encode_prompt(tokenizer, "<answer> 8")]
    result = score(scorer, Sample(prompt=PROMPT, response_token_ids=broken, references=["7"]))
    assert "9 sampled tokens" in result.reason


# What pieces of text models write; tags make the splice, odd characters the bytes.
_PIECES = st.lists(
    st.sampled_from(
        (
            *(
                "<answer>",
                "</answer>",
                "<answer",
                "<answers>",
                "<think>",
                "Answer:",
                "\\boxed{",
                "}",
                "\\frac",
            ),
            *("7", "x", ">", "\\", "é", "数", "🎉", "\u200d", "ﬀ", " ", "\n", "\r\n"),
        )
    ),
    max_size=12,
).map("".join)
_TEMPLATES = st.sampled_from(
    [
        "rlpr",
        "verifree",
        CustomTemplate(),
        CustomTemplate(marker="Answer:", occurrence="last", text=" \\boxed{{reference}}.", scored="text"),
        CustomTemplate(marker="<answer", text=">\n{reference}\n"),
    ]
)


@pytest.fixture(scope="module", params=["bytes", "bpe", "byte fallback"])
def tokenizer(request: pytest.FixtureRequest, tiny_llama: Path) -> PreTrainedTokenizerBase:
    """Bytes; a BPE with merges of several characters across all borders; SentencePiece's way, as in Gemma."""
    if request.param == "bytes":
        return models.load_tokenizer(tiny_llama)
    return _trained_bpe() if request.param == "bpe" else _byte_fallback()


def _trained_bpe() -> PreTrainedTokenizerFast:
    inner = Tokenizer(tokenizer_models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    corpus = [
        "so é数🎉 <answer> 7 </answer>\n",
        "> \\boxed{7} </answer>",
        "Answer: \\boxed{\\frac",
        "<answer>\r\n7 ",
    ]
    trainer = BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(corpus * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def _byte_fallback() -> PreTrainedTokenizerFast:
    words = [chr(code) for code in range(32, 127)] + [
        "▁",
        "\n",
        "▁7",
        "answer",
        "<answer",
        "</answer>",
        ">\n",
    ]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {word: 256 + index for index, word in enumerate(words)}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [["▁", "7"], [">", "\n"]],
        },
    }
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)))


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return cast(str, tokenizer.decode(list(ids)))


def _make(template: str | CustomTemplate, response: str, reference: str) -> splice.Splice:
    if isinstance(template, CustomTemplate):
        return splice.custom(response, reference, template)
    return splice.rlpr(response, reference) if template == "rlpr" else splice.verifree(response, reference)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(st.tuples(_PIECES, _PIECES), _PIECES.filter(str.strip), _TEMPLATES, st.data())
def test_any_splice_decodes_to_its_text_and_scores_the_reference(
    tokenizer: PreTrainedTokenizerBase,
    around: tuple[str, str],
    reference: str,
    template: str | CustomTemplate,
    data: st.DataObject,
) -> None:
    marker = template.marker if isinstance(template, CustomTemplate) else "<answer>"
    response = f"{around[0]}{marker} {around[1]}"
    try:
        made = _make(template, response, reference)
    except splice.NoAnswer:
        assume(False)
        raise
    # A policy may sample any ids that make the text, not only the tokenizer's own.
    cuts = sorted(data.draw(st.lists(st.integers(0, len(response)), max_size=4)))
    parts = [response[a:b] for a, b in zip([0, *cuts], [*cuts, len(response)], strict=True) if a < b]
    sampled = tuple(token for part in parts for token in models.encode_prompt(tokenizer, part))
    assert _text(tokenizer, sampled) == response
    for ids in ((), sampled):
        try:
            tokens = splice.tokenise(tokenizer, made, ids)
        except Unscorable as error:
            assert "in one token" in str(error)  # noqa: PT017
            continue
        assert _text(tokenizer, tokens.ids) == made.text
        assert tokens.ids[: tokens.sampled] == ids[: tokens.sampled]
        # As many sampled ids are kept as lie before the border, one token across it apart.
        assert len(_text(tokenizer, ids[: tokens.sampled])) <= made.kept
        if tokens.sampled < len(ids):
            more = _text(tokenizer, ids[: tokens.sampled + 1])
            assert len(more) > made.kept or not made.text.startswith(more)
        # The scored tokens are the reference's, white space beside it aside, and stand where they should.
        scored = _text(tokenizer, tokens.ids[tokens.first : tokens.last])
        assert scored.strip() == made.text[made.start : made.end].strip()
        before = _text(tokenizer, tokens.ids[: tokens.first])
        assert made.text.startswith(before)
        assert made.text[len(before) : made.start].strip() == ""
