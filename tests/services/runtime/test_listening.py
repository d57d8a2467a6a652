"""Pieces of groups on their way from a service's threads to a door."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from guerdon.types import GenerateResult, Rollout, Status
from guerdon_services.runtime.listening import Inbox, Listener, Piece
from guerdon_services.runtime.submission import NOT_RUN, Failure, Ran, Submission

WHOLE = Rollout(response="ab", token_ids=[1, 2], logprobs=[-1.0, -2.0], finish_reason="stop", model_version=3)
GROUP = GenerateResult(status=Status.OK, rollouts=[WHOLE])


def finish(
    ids: Sequence[str | None], values: Sequence[GenerateResult | Failure], ran: Ran
) -> list[GenerateResult]:
    return [
        GenerateResult(status=value.status, reason=value.reason) if isinstance(value, Failure) else value
        for value in values
    ]


def listened(items: int) -> tuple[Submission[GenerateResult], list[Listener]]:
    inbox = Inbox()
    submission = Submission[GenerateResult]([None] * items, finish, inbox=inbox)
    return submission, [Listener(inbox, index, tokens=True) for index in range(items)]


def grown(number: int, token: int, rollout: Rollout | None = None) -> Piece:
    return Piece(
        number=number,
        version=3,
        prompt_token_ids=(9,),
        token_ids=[token],
        logprobs=[-float(token)],
        text=chr(96 + token),
        rollout=rollout,
    )


async def all_of(submission: Submission[GenerateResult]) -> list[tuple[int, Any]]:
    return [one async for chunk in submission.chunks() for one in chunk]


async def test_pieces_come_ahead_of_their_result_and_wake_the_reader() -> None:
    submission, [listener] = listened(1)
    chunks = submission.chunks()
    reader = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    assert not listener.told
    await asyncio.to_thread(listener.hear, grown(0, 1))
    assert listener.told
    assert await asyncio.wait_for(reader, 30) == [(0, grown(0, 1))]
    await asyncio.to_thread(listener.hear, grown(0, 2, WHOLE))
    submission.resolve([0], [GROUP], NOT_RUN)
    assert [one async for chunk in chunks for one in chunk] == [(0, grown(0, 2, WHOLE)), (0, GROUP)]


async def test_a_slow_reader_finds_one_piece_per_rollout() -> None:
    submission, listeners = listened(2)

    def sample() -> None:
        for token in range(1, 21):
            for listener in listeners:
                for number in (1, 0):
                    listener.hear(grown(number, token, WHOLE if token == 20 else None))

    await asyncio.to_thread(sample)
    submission.resolve([1, 0], [GROUP, GROUP], NOT_RUN)
    *pieces, first, second = await all_of(submission)
    assert [(index, piece.number) for index, piece in pieces] == [(0, 1), (0, 0), (1, 1), (1, 0)]
    for _, piece in pieces:
        assert piece.token_ids == list(range(1, 21))
        assert piece.logprobs == [-float(token) for token in range(1, 21)]
        assert piece.text == "abcdefghijklmnopqrst"
        assert (piece.rollout, piece.version, piece.prompt_token_ids) == (WHOLE, 3, (9,))
    assert [first, second] == [(1, GROUP), (0, GROUP)]


async def test_what_waited_for_a_slow_reader_is_joined_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Joined one to another, what has been joined is copied with each that follows: the event loop stood still for
    # eight seconds over 64 responses of 4096 tokens.
    inbox = Inbox()
    for _ in range(100):
        inbox.put(0, grown(0, 3))
    made, make = list[int](), Piece.__init__

    def counted(piece: Piece, *arguments: Any, **named: Any) -> None:
        make(piece, *arguments, **named)
        made.append(len(piece.token_ids))

    monkeypatch.setattr(Piece, "__init__", counted)
    [(_, piece)] = inbox.take()
    assert piece.token_ids == [3] * 100
    assert made == [100]


async def test_nothing_follows_a_result() -> None:
    submission, [late, other] = listened(2)
    failure = Failure(Status.TIMEOUT, "the deadline passed")
    submission.resolve([0], [failure], NOT_RUN)
    chunks = submission.chunks()
    [(index, result)] = await anext(chunks)
    assert (index, result.status) == (0, Status.TIMEOUT)  # type: ignore[union-attr]
    late.hear(grown(0, 1))
    other.hear(grown(0, 2))
    assert await anext(chunks) == [(1, grown(0, 2))]
    assert not late.gone
    await chunks.aclose()
    assert late.gone


async def test_a_reader_who_leaves_is_noticed_and_nothing_is_kept_for_him() -> None:
    submission, [listener] = listened(1)
    listener.hear(grown(0, 1))
    submission.cancel()
    assert listener.gone
    listener.hear(grown(0, 2))
    assert await all_of(submission) == []


async def test_after_the_last_result_what_still_comes_is_dropped() -> None:
    submission, [listener] = listened(1)
    submission.resolve([0], [Failure(Status.TIMEOUT, "late")], NOT_RUN)
    assert len(await all_of(submission)) == 1
    assert listener.gone


def test_a_service_may_go_on_after_its_event_loop_has_ended() -> None:
    async def begin() -> Listener:
        return listened(1)[1][0]

    listener = asyncio.run(begin())
    listener.hear(grown(0, 1))


async def test_many_threads_lose_nothing() -> None:
    submission, [listener] = listened(1)
    threads = [
        threading.Thread(target=lambda n=n: [listener.hear(grown(n, 1)) for _ in range(500)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    heard = dict.fromkeys(range(4), 0)
    async with asyncio.timeout(60):
        async for chunk in submission.chunks():
            for _, piece in chunk:
                assert isinstance(piece, Piece)
                heard[piece.number] += len(piece.token_ids)
            if sum(heard.values()) == 2000:
                break
    assert heard == dict.fromkeys(range(4), 500)
    for thread in threads:
        thread.join()
