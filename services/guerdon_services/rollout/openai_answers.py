"""What OpenAI clients are answered: results as choices, whole or in deltas as they are sampled."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from guerdon.types import GenerateResult
from guerdon_services.rollout.openai_requests import ChatRequest, CompletionRequest
from guerdon_services.runtime.listening import Piece

if TYPE_CHECKING:
    from guerdon_services.rollout.service import RolloutGenerator

AnyRequest = CompletionRequest | ChatRequest


class Answer:
    """The answer to one request; the choices of prompt i are number i * n and following."""

    def __init__(self, service: "RolloutGenerator", request: AnyRequest) -> None:
        self.request = request
        self.chat = isinstance(request, ChatRequest)
        self._service = service
        self._id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, results: Sequence[GenerateResult]) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            self.choice(index, piece, is_first=True)
            for index, result in enumerate(results)
            for piece in pieces(result)
        ]
        head = self.head(results[0].rollouts[0].model_version)
        return {**head, "choices": choices, "usage": usage(results)}

    def head(self, version: int) -> dict[str, Any]:
        """What every object of the answer begins with."""
        kind = "chat.completion" if self.chat else "text_completion"
        if self.chat and self.request.stream:
            kind = "chat.completion.chunk"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._service.served_name,
            "system_fingerprint": f"v{version}",
        }

    def choice(self, index: int, piece: Piece, *, is_first: bool, offset: int = 0) -> dict[str, Any]:
        """A piece of prompt number `index`'s answer; its tokens begin `offset` characters into their choice."""
        choice: dict[str, Any] = {"index": index * self.request.n + piece.number}
        if self.chat:
            role = {"role": "assistant"} if is_first else {}
            choice["delta" if self.request.stream else "message"] = {**role, "content": piece.text}
        else:
            choice["text"] = piece.text
        choice["logprobs"] = self._logprobs(piece, offset) if self.request.wants_logprobs else None
        choice["finish_reason"] = None if piece.rollout is None else piece.rollout.finish_reason
        choice["model_version"] = piece.version
        if piece.rollout is not None and piece.rollout.last_version is not None:
            choice["last_version"] = piece.rollout.last_version
        if self.request.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
            if is_first:
                choice["prompt_token_ids"] = list(piece.prompt_token_ids)
        return choice

    def texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token alone."""
        tokenizer = self._service.engine.tokenizer
        return [str(tokenizer.decode([token])) for token in token_ids]

    def _logprobs(self, piece: Piece, offset: int) -> dict[str, Any]:
        texts = self.texts(piece.token_ids)
        if self.chat:
            content = [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in zip(texts, piece.logprobs, strict=True)
            ]
            return {"content": content, "refusal": None}
        offsets = [offset]
        for text in texts[:-1]:
            offsets.append(offsets[-1] + len(text))
        return {
            "tokens": texts,
            "token_logprobs": list(piece.logprobs),
            "top_logprobs": None,
            "text_offset": offsets[: len(texts)],
        }


class StreamedAnswer:
    """The same answer as chunks: text as soon as it is certain, tokens as they are sampled where they are asked for."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        #: Characters of the tokens of each choice that has begun, by prompt and number.
        self._begun: dict[tuple[int, int], int] = {}
        self._ended: set[tuple[int, int]] = set()

    def chunks(self, index: int, news: GenerateResult | Piece) -> Iterator[dict[str, Any]]:
        """What there is to say of a piece, or of a group that is complete: what its pieces have not said."""
        for piece in [news] if isinstance(news, Piece) else pieces(news):
            if (index, piece.number) not in self._ended and self._says_something(index, piece):
                yield self._chunk(index, piece)

    def _says_something(self, index: int, piece: Piece) -> bool:
        request = self._answer.request
        says_tokens = bool(piece.token_ids) and (request.wants_logprobs or request.return_token_ids)
        says_role = self._answer.chat and (index, piece.number) not in self._begun
        return bool(piece.text) or piece.rollout is not None or says_tokens or says_role

    def _chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        answer, choice = self._answer, (index, piece.number)
        is_first, offset = choice not in self._begun, self._begun.get(choice, 0)
        said = answer.choice(index, piece, is_first=is_first, offset=offset)
        self._begun[choice] = offset
        if answer.request.wants_logprobs and not answer.chat:
            self._begun[choice] += sum(map(len, answer.texts(piece.token_ids)))
        if piece.rollout is not None:
            self._ended.add(choice)
        return {**answer.head(piece.version), "choices": [said]}

    def last(self, results: Sequence[GenerateResult]) -> dict[str, Any] | None:
        """The chunk after all choices, if one is asked for."""
        if not self._answer.request.stream_options.include_usage:
            return None
        head = self._answer.head(results[-1].rollouts[0].model_version)
        return {**head, "choices": [], "usage": usage(results)}


def pieces(result: GenerateResult) -> Iterator[Piece]:
    """Each rollout of a group in one piece."""
    for number, rollout in enumerate(result.rollouts):
        yield Piece(
            number=number,
            version=rollout.model_version,
            prompt_token_ids=result.prompt_token_ids,
            token_ids=rollout.token_ids,
            logprobs=rollout.logprobs,
            text=rollout.response,
            rollout=rollout,
        )


def usage(results: Sequence[GenerateResult]) -> dict[str, int]:
    """The tokens of prompts and responses."""
    prompt = sum(len(result.prompt_token_ids) for result in results)
    completion = sum(len(rollout.token_ids) for result in results for rollout in result.rollouts)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
