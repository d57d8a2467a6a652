"""The native operations, the same for every door: how a request is read, begun and answered."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import structlog

from guerdon import codec
from guerdon.errors import InternalError, InvalidRequest
from guerdon.types import (
    GenerateRequest,
    GenerateResponse,
    GenerateResult,
    GenerateSample,
    IndexedGeneration,
    IndexedResult,
    Message,
    Result,
    RolloutPiece,
    ScoreRequest,
    ScoreResponse,
    Status,
    UpdateRequest,
    UpdateResponse,
)
from guerdon_services.runtime import protobuf, stamping, validation
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.listening import Piece
from guerdon_services.runtime.scorer import AnyService
from guerdon_services.runtime.submission import NOT_RUN, Failure, Submission

log = structlog.get_logger(__name__)

T = TypeVar("T")
ParsedT = TypeVar("ParsedT")
ParsedT_contra = TypeVar("ParsedT_contra", contravariant=True)
AnswerT = TypeVar("AnswerT")


#: Bodies larger than this many bytes are read in a thread.
_READ_IN_THREAD = 256 * 1024


class Begin(Protocol[ParsedT_contra, AnswerT]):
    """Admits a request whole; `Dispatcher.begin_score` and its like."""

    def __call__(
        self, parsed: ParsedT_contra, /, timeout_s: float | None = None, *, bounded: bool = True
    ) -> Awaitable[Submission[AnswerT]]: ...


@dataclass(frozen=True)
class Native(Generic[ParsedT, AnswerT]):
    """One operation. Messages are built without validation: what they hold was checked already."""

    name: str
    request: type[Message]
    response: type[Message]
    parse_json: Callable[[bytes], ParsedT]
    parse_proto: Callable[[bytes], ParsedT]
    begin: Begin[ParsedT, AnswerT]
    gather: Callable[[Sequence[AnswerT]], Message]
    #: The answer to a request of one item that was refused: service, id (of an update: its request id), why.
    refused: Callable[[AnyService, str, Failure], AnswerT]
    #: One streamed item; None where there is only one answer.
    line: type[Message] | None = None
    #: As `begin`, for an answer that is streamed, where that makes a difference.
    begin_stream: Begin[ParsedT, AnswerT] | None = None

    def indexed(self, index: int, answer: AnswerT | Piece) -> Message | None:
        """The streamed form of one answer, or of what comes ahead of it; None where that has none."""
        assert self.line is not None
        if not isinstance(answer, Piece):
            return self.line.model_construct(index=index, result=answer)
        if answer.rollout is None:
            return None
        piece = RolloutPiece.model_construct(number=answer.number, rollout=answer.rollout)
        return self.line.model_construct(index=index, piece=piece)

    def written(self, service: AnyService, answers: Sequence[AnswerT], write: Callable[[Message], T]) -> T:
        """The whole answer in the form of a door. One that has no such form is a failure, and costs no neighbour."""
        try:
            return write(self.gather(answers))
        except Exception:
            return write(self.gather([self._writable(service, one, write) for one in answers]))

    def line_written(
        self, service: AnyService, index: int, answer: AnswerT | Piece, write: Callable[[Message], T]
    ) -> T | None:
        """One streamed item; as `written`. None where there is nothing to write: pieces may be left out."""
        try:
            message = self.indexed(index, answer)
            return None if message is None else write(message)
        except Exception:
            if isinstance(answer, Piece):
                return None  # the result has it again, and will say
            message = self.indexed(index, self._writable(service, answer, write))
            assert message is not None
            return write(message)

    def _writable(self, service: AnyService, answer: AnswerT, write: Callable[[Message], T]) -> AnswerT:
        message = cast(Any, answer)
        try:
            write(message)
        except Exception as error:
            log.exception("an answer cannot be written", operation=self.name)
            failure = Failure(Status.INTERNAL_ERROR, f"the answer cannot be written: {error}")
            if isinstance(message, UpdateResponse):
                return self.refused(service, message.request_id, failure)
            refused = cast(Any, self.refused(service, "", failure))
            return refused.model_copy(update={"id": message.id})
        return answer


def natives(dispatcher: Dispatcher) -> list[Native[Any, Any]]:
    """The operations that the service has."""
    every: list[Native[Any, Any]] = [
        Native(
            name="score",
            request=ScoreRequest,
            response=ScoreResponse,
            parse_json=validation.parse_score,
            parse_proto=protobuf.parse_score,
            begin=dispatcher.begin_score,
            gather=_scores,
            refused=lambda service, _, failure: stamping.results(service, [None], [failure], NOT_RUN)[0],
            line=IndexedResult,
        ),
        Native(
            name="generate",
            request=GenerateRequest,
            response=GenerateResponse,
            parse_json=validation.parse_generate,
            parse_proto=protobuf.parse_generate,
            begin=dispatcher.begin_generate,
            gather=_generations,
            refused=lambda service, _, failure: stamping.generations(service, [None], [failure], NOT_RUN)[0],
            line=IndexedGeneration,
            begin_stream=partial(_begin_rollouts, dispatcher),
        ),
        Native(
            name="update",
            request=UpdateRequest,
            response=UpdateResponse,
            parse_json=validation.parse_update,
            parse_proto=protobuf.parse_update,
            begin=dispatcher.begin_update,
            gather=_only,
            refused=lambda service, id, failure: stamping.update(service, id, [], failure, NOT_RUN),
        ),
    ]
    return [native for native in every if native.name in dispatcher.operations]


async def _begin_rollouts(
    dispatcher: Dispatcher,
    parsed: validation.Parsed[GenerateRequest, GenerateSample],
    timeout_s: float | None = None,
    *,
    bounded: bool = True,
) -> Submission[GenerateResult]:
    listening = "rollouts" if parsed.envelope.each_rollout else None
    return await dispatcher.begin_generate(parsed, timeout_s, bounded=bounded, listening=listening)


async def read(parse: Callable[[bytes], ParsedT], body: bytes) -> ParsedT:
    """The request in a body; a large one is read in a thread, so that the event loop goes on."""
    return await asyncio.to_thread(parse, body) if len(body) > _READ_IN_THREAD else parse(body)


def encoded(answer: Message) -> bytes:
    """The protobuf bytes of an answer.

    Raises:
        InternalError: it has none. That is not the caller's fault, whatever the codec says.
    """
    try:
        return codec.encode(answer)
    except InvalidRequest as error:
        raise InternalError(f"the answer has no protobuf form: {error}") from error


def _scores(results: Sequence[Result]) -> Message:
    return ScoreResponse.model_construct(results=list(results))


def _generations(results: Sequence[GenerateResult]) -> Message:
    return GenerateResponse.model_construct(results=list(results))


def _only(responses: Sequence[UpdateResponse]) -> Message:
    [response] = responses
    return response
