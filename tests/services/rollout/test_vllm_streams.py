"""Groups that somebody listens to while a vLLM engine lives and dies; a stand-in samples. See test_vllm_life.py."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.stopping import decode
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.engines.vllm_updates import EngineDied
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.listening import Listener, Piece
from guerdon_services.runtime.scorer import NotReady
from tests.services.rollout.fake_vllm import ABORTED, FakeCore, World, publish, until

TOKENS = 6


@dataclass
class Heard:
    """In place of a door: everything it hears, and whether it is still there."""

    tokens: bool
    gone: bool = False
    told: bool = False
    pieces: list[Piece] = field(default_factory=list)

    def hear(self, piece: Piece) -> None:
        self.told = True
        self.pieces.append(piece)

    def group(self, size: int = 3) -> list[Row]:
        """A group that this door listens to; row `i` is let go on by `Stream.let(i, ...)`."""
        row = Row(
            prompt_ids=(60,), max_new_tokens=TOKENS, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=None,
            listener=cast(Listener, self),
        )  # fmt: skip
        return [replace(row, number=number) for number in range(size)]

    def texts(self) -> dict[int, str]:
        texts: dict[int, str] = {}
        for piece in self.pieces:
            texts[piece.number] = texts.get(piece.number, "") + piece.text
        return texts

    @property
    def whole(self) -> list[int]:
        return [piece.number for piece in self.pieces if piece.rollout is not None]


class Stream(World):
    """How many tokens each row may have by now."""

    def __init__(self) -> None:
        super().__init__()
        self.flow.set()
        self.allowed: dict[int, int] = {}
        self.cancelled: list[int] = []
        self.asked: list[Row] = []
        self.same_in_every_life = False

    def let(self, number: int, tokens: int = TOKENS) -> None:
        self.allowed[number] = tokens


class StreamingCore(FakeCore):
    """Row `i` says its token, 70 + i + 10 * lives, as often as the test lets it."""

    async def grow(self, row: Row, end_tokens: frozenset[int]) -> AsyncIterator[Any]:
        assert row.listener is not None
        world = cast(Stream, self.world)
        self.asked += 1
        world.asked.append(row)
        began, aborts, said = self.version, self.aborts, list[int]()
        token = 70 + row.number + (0 if world.same_in_every_life else 10 * (len(world.cores) - 1))
        try:
            while len(said) < row.max_new_tokens:
                await asyncio.sleep(0.001)
                if self.dead:
                    raise EngineDied("the engine died")
                if self.aborts > aborts:
                    yield ABORTED
                    return
                if len(said) < world.allowed.get(row.number, 0):
                    said.append(token)
                    last = len(said) == row.max_new_tokens
                    if row.listener.tokens or last:
                        yield self._output([token] if row.listener.tokens else said, last, began)
        except asyncio.CancelledError:
            world.cancelled.append(row.number)
            raise

    def _output(self, token_ids: list[int], last: bool, began: int) -> Any:
        return SimpleNamespace(
            finish_reason="length" if last else None,
            stop_reason=None,
            token_ids=token_ids,
            logprobs=SimpleNamespace(logprobs=[-1.0] * len(token_ids)),
            weight_versions=[SimpleNamespace(version=str(began))] if last else None,
        )


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def engine_of(tiny_llama: Path, tmp_path: Path, stream: Stream) -> Iterator[Callable[..., VllmEngine]]:
    opened: list[VllmEngine] = []

    def build(**settings: Any) -> VllmEngine:
        chosen = RolloutSettings(model=tiny_llama, weights_dir=tmp_path, **settings)
        opened.append(VllmEngine(chosen, cast(Any, lambda path: StreamingCore(stream, path))))
        return opened[-1]

    yield build
    for engine in opened:
        engine.close()


@pytest.fixture
def begin() -> Iterator[Callable[..., Future[list[Sampled]]]]:
    with ThreadPoolExecutor(4) as pool:
        yield lambda engine, rows: pool.submit(engine.generate, rows)


def tokens_of(answer: Future[list[Sampled]]) -> list[int]:
    for one in answer.result():
        assert one.token_ids == one.token_ids[:1] * TOKENS
        assert len(one.logprobs) == TOKENS
    assert len({one.version for one in answer.result()}) == 1
    return [one.token_ids[0] for one in answer.result()]


@pytest.mark.parametrize("tokens", [False, True])
def test_each_row_is_told_as_it_ends(engine_of: Any, stream: Stream, begin: Any, tokens: bool) -> None:
    heard, engine = Heard(tokens), engine_of()
    answer = begin(engine, heard.group())
    for number in (2, 0, 1):
        assert not answer.done()
        stream.let(number)
        until(lambda number=number: heard.whole[-1:] == [number])
    assert tokens_of(answer) == [70, 71, 72]
    assert heard.whole == [2, 0, 1]
    for piece in heard.pieces:
        if piece.rollout is not None:
            sampled = answer.result()[piece.number]
            assert (piece.rollout.response, piece.rollout.token_ids) == (sampled.text, sampled.token_ids)
            assert (piece.version, piece.rollout.model_version, piece.prompt_token_ids) == (0, 0, (60,))
    if tokens:
        assert heard.texts() == {place: one.text for place, one in enumerate(answer.result())}
        assert len(heard.pieces) == 3 * TOKENS
    else:
        assert [piece.token_ids for piece in heard.pieces] == [()] * 3


def test_rows_that_were_given_out_outlive_the_engine(engine_of: Any, stream: Stream, begin: Any) -> None:
    heard, engine = Heard(tokens=False), engine_of()
    answer = begin(engine, heard.group())
    stream.let(1)
    until(lambda: heard.whole == [1])
    stream.cores[-1].dead = True
    until(lambda: len(stream.cores) == 2 and stream.cores[-1].asked == 2)
    stream.let(0)
    stream.let(2)
    assert tokens_of(answer) == [80, 71, 82], "the second life sampled what was missing, and nothing else"
    assert heard.whole[0] == 1
    assert sorted(heard.whole) == [0, 1, 2]


def test_a_group_of_which_nothing_was_given_out_is_sampled_anew(
    engine_of: Any, stream: Stream, begin: Any, tmp_path: Path, tiny_llama: Path
) -> None:
    heard, engine = Heard(tokens=True), engine_of(on_update="restart")
    answer = begin(engine, heard.group())
    until(lambda: stream.cores[-1].asked == 3)
    publish(tmp_path, 1, tiny_llama)
    until(lambda: stream.cores[-1].asked == 6)
    for number in range(3):
        stream.let(number)
    assert {one.version for one in answer.result()} == {1}
    assert {piece.version for piece in heard.pieces} == {1}


@pytest.mark.parametrize("tokens", [False, True])
def test_another_version_ends_a_group_that_was_given_out_in_part(
    engine_of: Any, stream: Stream, begin: Any, tmp_path: Path, tiny_llama: Path, tokens: bool
) -> None:
    heard, engine = Heard(tokens), engine_of(on_update="restart")
    answer = begin(engine, heard.group())
    stream.let(1)
    until(lambda: heard.whole == [1])
    publish(tmp_path, 1, tiny_llama)
    with pytest.raises(NotReady, match="version 1 took over before all of a group that 0 began was there"):
        answer.result(timeout=120)
    assert heard.whole == [1]
    assert stream.cores[-1].asked == 3, "nothing was sampled under the new version"


def test_an_engine_that_comes_back_with_another_version_ends_such_a_group(
    engine_of: Any, stream: Stream, begin: Any
) -> None:
    heard, engine = Heard(tokens=False), engine_of()
    engine._updates._followed.sent(7)  # by a trainer; no folder has them
    stream.cores[-1].version = 7
    answer = begin(engine, heard.group())
    stream.let(0)
    until(lambda: heard.whole == [0])
    stream.cores[-1].dead = True
    with pytest.raises(NotReady, match="version 0 took over before all of a group that 7 began was there"):
        answer.result()
    assert stream.cores[-1].asked == 0


def test_half_a_response_goes_on_in_another_life(engine_of: Any, stream: Stream, begin: Any) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    answer = begin(engine, [replace(row, min_new_tokens=4) for row in heard.group()])
    stream.let(1, 3)
    stream.let(2)
    until(lambda: len(heard.pieces) == 3 + TOKENS)
    stream.cores[-1].dead = True
    until(lambda: len(stream.cores) == 2 and stream.cores[-1].asked == 2)
    stream.let(0)
    stream.let(1)
    said = {0: [80] * 6, 1: [71] * 3 + [81] * 3, 2: [72] * 6}
    for number, sampled in enumerate(answer.result(timeout=120)):
        pieces = [piece for piece in heard.pieces if piece.number == number]
        assert sampled.token_ids == said[number]
        assert [token for piece in pieces for token in piece.token_ids] == said[number]
        assert [logprob for piece in pieces for logprob in piece.logprobs] == sampled.logprobs
        assert {piece.prompt_token_ids for piece in pieces} == {(60,)}
    assert heard.texts() == {number: one.text for number, one in enumerate(answer.result())}
    asked = {row.number: row for row in stream.asked[-2:]}
    assert (asked[1].prompt_ids, asked[1].max_new_tokens, asked[1].min_new_tokens) == ((60, 71, 71, 71), 3, 1)
    assert (asked[0].prompt_ids, asked[0].max_new_tokens, asked[0].min_new_tokens) == ((60,), 6, 4)


def test_a_response_that_was_aborted_half_goes_on(engine_of: Any, stream: Stream, begin: Any) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    answer = begin(engine, heard.group(1))
    stream.let(0, 2)
    until(lambda: len(heard.pieces) == 2)
    asyncio.run(engine.call(engine.hold.pause("abort")))
    asyncio.run(engine.call(engine.hold.resume()))
    until(lambda: stream.cores[-1].asked == 2)
    stream.let(0)
    assert tokens_of(answer) == [70]
    assert len(stream.cores) == 1
    assert stream.asked[-1].prompt_ids == (60, 70, 70)


def test_a_stop_string_is_found_across_the_seam(engine_of: Any, stream: Stream, begin: Any) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    before, after = decode(engine.tokenizer, [70]), decode(engine.tokenizer, [80])
    answer = begin(engine, [replace(row, stop=(before + after * 2,)) for row in heard.group(1)])
    stream.let(0, 3)
    until(lambda: len(heard.pieces) == 3)
    stream.cores[-1].dead = True
    until(lambda: len(stream.cores) == 2)
    stream.let(0)
    [sampled] = answer.result(timeout=120)
    assert (sampled.token_ids, sampled.finish_reason, sampled.version) == ([70] * 3 + [80] * 2, "stop", 0)
    assert sampled.text == heard.texts()[0] == before * 2
    assert heard.whole == [0]
    assert stream.asked[-1].stop == (), "vLLM knows nothing of what was given"


PENALISED = {"presence_penalty": 0.5}


@pytest.mark.parametrize(("changes", "same"), [({}, True), ({}, False), (PENALISED, True)])
def test_a_seeded_response_is_drawn_again_and_compared(
    engine_of: Any, stream: Stream, begin: Any, changes: dict[str, Any], same: bool
) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    answer = begin(engine, [replace(row, seed=3, **changes) for row in heard.group(1)])
    stream.let(0, 2)
    until(lambda: len(heard.pieces) == 2)
    stream.let(0, 0)
    stream.same_in_every_life = same
    stream.cores[-1].dead = True
    until(lambda: len(stream.cores) == 2)
    stream.let(0)
    if same:
        assert tokens_of(answer) == [70]
        assert sum(len(piece.token_ids) for piece in heard.pieces) == TOKENS
        assert heard.texts()[0] == answer.result()[0].text
        assert (stream.asked[-1].prompt_ids, stream.asked[-1].max_new_tokens) == ((60,), TOKENS)
    else:
        with pytest.raises(NotReady, match="another one than had been given out in part"):
            answer.result(timeout=120)
        assert len(heard.pieces) == 2


def test_what_penalties_without_a_seed_drew_is_never_drawn_anew(
    engine_of: Any, stream: Stream, begin: Any
) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    answer = begin(engine, [replace(row, **PENALISED) for row in heard.group()])
    stream.let(1, 3)
    until(lambda: len(heard.pieces) == 3)
    stream.cores[-1].dead = True
    with pytest.raises(NotReady, match=r"broke off in the middle of a response.*a seed would allow"):
        answer.result(timeout=120)
    assert heard.texts() == {1: heard.pieces[0].text * 3}
    until(lambda: engine.state == "version 0 serves")


def test_what_lost_weights_had_gone_on_with_does_not_go_on(
    engine_of: Any, stream: Stream, begin: Any
) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    answer = begin(engine, heard.group(1))
    stream.let(0, 1)
    until(lambda: len(heard.pieces) == 1)
    engine._updates._followed.sent(7)  # by a trainer; no folder has them
    stream.let(0, 2)
    until(lambda: len(heard.pieces) == 2)
    stream.cores[-1].dead = True
    with pytest.raises(NotReady, match="other weights, which are gone, had gone on with it"):
        answer.result(timeout=120)


@pytest.mark.parametrize("tokens", [False, True])
def test_what_nobody_waits_for_is_sampled_no_longer(
    engine_of: Any, stream: Stream, begin: Any, tokens: bool
) -> None:
    heard, engine = Heard(tokens), engine_of()
    answer = begin(engine, heard.group())
    stream.let(0)
    until(lambda: heard.whole == [0])
    heard.gone = True
    with pytest.raises(NotReady, match="nobody waits"):
        answer.result()
    assert sorted(stream.cancelled) == [1, 2]
    assert not engine._updates._running


def test_rows_begun_by_another_version_than_was_said_end_the_group(
    engine_of: Any, stream: Stream, begin: Any
) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    stream.cores[-1].version = 4  # an update that came between the question and the first token
    answer = begin(engine, heard.group(1))
    stream.let(0)
    with pytest.raises(NotReady, match="versions 0 and 4 began responses of one group"):
        answer.result()
    assert heard.whole == []
