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
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.engines.vllm_updates import EngineDied
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.listening import Listener, Piece
from guerdon_services.runtime.scorer import NotReady
from tests.services.rollout.fake_vllm import FakeCore, World, publish, until

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

    def let(self, number: int, tokens: int = TOKENS) -> None:
        self.allowed[number] = tokens


class StreamingCore(FakeCore):
    """Row `i` says its token, 70 + i + 10 * lives, as often as the test lets it."""

    async def grow(self, row: Row, end_tokens: frozenset[int]) -> AsyncIterator[Any]:
        assert row.listener is not None
        world = cast(Stream, self.world)
        self.asked += 1
        began, aborts, said = self.version, self.aborts, list[int]()
        token = 70 + row.number + 10 * (len(world.cores) - 1)
        try:
            while len(said) < row.max_new_tokens:
                await asyncio.sleep(0.001)
                if self.dead:
                    raise EngineDied("the engine died")
                if self.aborts > aborts:
                    yield SimpleNamespace(finish_reason="abort", token_ids=[], logprobs=None)
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
        answer.result()
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


def test_half_a_response_is_never_begun_anew(engine_of: Any, stream: Stream, begin: Any) -> None:
    heard, engine = Heard(tokens=True), engine_of()
    answer = begin(engine, heard.group())
    stream.let(1, 3)
    until(lambda: len(heard.pieces) == 3)
    stream.cores[-1].dead = True
    with pytest.raises(NotReady, match="broke off in the middle of a response"):
        answer.result()
    assert heard.texts() == {1: heard.pieces[0].text * 3}
    until(lambda: engine.state == "version 0 serves")


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
