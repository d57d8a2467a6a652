"""Text that is given out while it is sampled: all of it, nothing of a stop string, no half characters."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from guerdon_services.rollout.engines import stopping
from guerdon_services.rollout.engines.stopping import GrowingText, StopStrings, decode
from tests.services.conftest import byte_tokenizer


@cache
def byte_level() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2's: words that bring their space along, bytes for all else, a space taken off at the beginning."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁ab", "é", "€"]
    tokenizer = Tokenizer(
        tokenizer_models.BPE(
            vocab={word: index for index, word in enumerate(words)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


TOKENIZERS = {"byte level": byte_level, "byte fallback": byte_fallback}


def sampled(
    tokenizer: PreTrainedTokenizerFast,
    token_ids: Sequence[int],
    stop: Sequence[str],
    *,
    step: int = 1,
    min_new_tokens: int = 0,
) -> tuple[list[str], str]:
    """What is given out, and the whole response, as an engine has it that ends at the first stop string."""
    growing = GrowingText(tokenizer, stop)
    strings = StopStrings(tokenizer, stop, ignored=min_new_tokens)
    given, told = list[str](), 0
    for written in range(1, len(token_ids) + 1):
        cut = strings.cut(token_ids[:written])
        if cut is not None or written == len(token_ids):
            whole = decode(tokenizer, token_ids[:written]) if cut is None else cut
            return [*given, growing.rest(whole)], whole
        if written % step == 0:
            given.append(growing.add(token_ids[told:written]))
            told = written
    return [growing.rest("")], ""


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    if tokenizer is byte_level():
        return list(tokenizer(text).input_ids)
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[f"<0x{byte:02X}>"] for byte in text.encode()]


_TEXTS = st.text(st.sampled_from("ab 7>\né€😀"), max_size=12)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_what_is_given_out_is_the_whole_response(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]()
    some = st.one_of(
        _TEXTS.map(lambda text: ids(tokenizer, text)),
        st.lists(st.integers(0, len(tokenizer) - 1), max_size=4),
    )
    parts = data.draw(st.lists(some, max_size=6))
    stop = data.draw(st.lists(st.text(st.sampled_from("ab 7>é😀"), min_size=1, max_size=4), max_size=3))
    token_ids = [token for part in parts for token in part]
    given, whole = sampled(
        tokenizer,
        token_ids,
        stop,
        step=data.draw(st.integers(1, 3)),
        min_new_tokens=data.draw(st.integers(0, 6)),
    )
    assert "".join(given) == whole


@given(data=st.data())
def test_no_part_of_a_stop_string_is_given_out(data: st.DataObject) -> None:
    stop = data.draw(st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=5), min_size=1, max_size=3))
    text = data.draw(st.text(st.sampled_from("abc"), max_size=20))
    given, whole = sampled(byte_level(), ids(byte_level(), text), stop)
    ends = [text.find(one) + len(one) for one in stop if one in text]
    first = min(ends, default=None)
    expected = (
        text
        if first is None
        else min((text[: text.find(one)] for one in stop if one in text[:first]), key=len)
    )
    assert whole == "".join(given) == expected


@pytest.mark.parametrize(
    ("text", "stop", "given"),
    [
        ("abc", [], ["a", "b", "c"]),
        ("aé€b", [], ["a", "", "é", "", "", "€", "b"]),
        ("ab", ["bc"], ["a", "b"]),
        ("abac", ["ba"], ["a", "", ""]),
        ("abbc", ["ba"], ["a", "", "b", "bc"]),
        ("aé", ["éb"], ["a", "", "é"]),
        ("xé", ["é"], ["x", "", ""]),
    ],
)
def test_each_step_gives_out_what_is_certain(text: str, stop: list[str], given: list[str]) -> None:
    assert sampled(byte_level(), ids(byte_level(), text), stop)[0] == given


def test_bytes_that_spell_nothing_are_given_out_once_that_is_certain() -> None:
    bad = byte_level().convert_tokens_to_ids("â")  # the first byte of three
    assert isinstance(bad, int)
    token_ids = [*ids(byte_level(), "a"), bad, *ids(byte_level(), "bc")]
    assert sampled(byte_level(), token_ids, [])[0] == ["a", "", "\ufffdb", "c"]


def named(tokenizer: PreTrainedTokenizerFast, *tokens: str) -> list[int]:
    return [tokenizer.get_vocab()[token] for token in tokens]


def test_spaces_stay_where_they_belong() -> None:
    tokenizer = byte_fallback()
    token_ids = named(tokenizer, "▁a", "▁ab", "</s>", "▁", "<0xC3>", "<0xA9>", "▁a", "b")
    given, whole = sampled(tokenizer, token_ids, [])
    assert whole == "a ab é ab"
    assert given == ["a", " ab", "", " ", "", "", "é a", "b"]


def test_a_byte_may_be_spoiled_by_the_next_one_though_something_unsaid_is_between() -> None:
    tokenizer = byte_fallback()
    token_ids = named(tokenizer, "a", "<0x37>", "</s>", "<0x80>")
    assert sampled(tokenizer, token_ids, []) == (["a", "", "", "\ufffd\ufffd"], "a\ufffd\ufffd")


def test_a_stop_string_that_came_too_early_does_not_count_later() -> None:
    token_ids = ids(byte_level(), "a!bcdefgh!i")
    assert sampled(byte_level(), token_ids, ["!"]) == (["a", ""], "a")
    given, whole = sampled(byte_level(), token_ids, ["!"], min_new_tokens=5)
    assert whole == "".join(given) == "a!bcdefgh"


@pytest.mark.parametrize("token", ["â", "<|end|>"])
def test_long_runs_that_say_nothing_are_not_read_again_at_every_token(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = byte_level()
    run = [tokenizer.convert_tokens_to_ids(token)] * 2000
    token_ids = [*run, *ids(tokenizer, "ab and the end of it" * 20)]
    growing, whole, read = GrowingText(tokenizer, ("zz",)), decode(tokenizer, token_ids), list[int]()

    def counted(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> str:
        read.append(len(token_ids))
        return decode(tokenizer, token_ids)

    monkeypatch.setattr(stopping, "decode", counted)
    given = "".join(growing.add([token]) for token in token_ids)
    assert sum(read) < 20 * len(token_ids)
    assert given
    assert given + growing.rest(whole) == whole


@pytest.mark.parametrize("token", ["â", "<|end|>"])
def test_nor_are_they_while_stop_strings_are_looked_for(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, read = byte_level(), list[int]()
    run = [tokenizer.convert_tokens_to_ids(token)] * 2000
    token_ids = [*ids(tokenizer, "a"), *run, *ids(tokenizer, "bc")]

    def counted(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> str:
        read.append(len(token_ids))
        return decode(tokenizer, token_ids)

    monkeypatch.setattr(stopping, "decode", counted)
    strings = StopStrings(tokenizer, ("ab", "\ufffdb"))
    cuts = [strings.cut(token_ids[:size]) for size in range(1, len(token_ids) + 1)]
    assert sum(read) < 20 * len(token_ids)
    assert [place for place, cut in enumerate(cuts) if cut is not None][:1] == [2001]
