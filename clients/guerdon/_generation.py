"""The messages of sampling: what is asked of a policy, and the rollouts that come; see `guerdon.types`."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from guerdon._messages import Message, Prompt, Status, TokenId, Version


class Sampling(Message):
    """How to sample responses; temperature 0 is greedy."""

    n: Annotated[int, Field(ge=1, le=1024)] = 1
    max_new_tokens: Annotated[int, Field(ge=1, lt=2**31)] = 256
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: list[str] = []
    stop_token_ids: list[TokenId] = []
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    min_new_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 0
    ignore_eos: bool = False
    raw_logprobs: bool = False


class GenerateSample(Message):
    """One prompt to continue, as text, chat messages or token ids."""

    id: str | None = None
    prompt: Prompt | None = None
    prompt_token_ids: list[TokenId] = []
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class GenerateRequest(Message):
    """A batch of prompts that share sampling parameters.

    With `each_rollout` a streamed answer also gives each rollout as it finishes; other answers are the same.
    """

    samples: list[GenerateSample]
    sampling: Sampling = Sampling()
    min_version: Version | None = None
    #: None is no; services from before there was a choice refuse any word about it.
    each_rollout: bool | None = None


class Rollout(Message):
    """One sampled response with what a trainer needs to learn from it.

    `logprobs` (nats) are at the sampling temperature, `raw_logprobs` at temperature 1, both over the whole
    vocabulary. `last_version` is given when the weights changed while it was sampled; `model_version` began it.
    """

    response: str
    token_ids: list[TokenId]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    model_version: Version
    raw_logprobs: list[float] = []
    last_version: Version | None = None


class GenerateResult(Message):
    """The `n` rollouts of one prompt: its group. Empty unless `status` is ok."""

    id: str | None = None
    status: Status
    reason: str = ""
    rollouts: list[Rollout] = []
    prompt_token_ids: list[TokenId] = []
    queue_ms: float = 0.0
    exec_ms: float = 0.0
    scorer: str = ""
    scorer_version: str = ""

    @model_validator(mode="after")
    def _rollouts_only_when_ok(self) -> Self:
        if bool(self.rollouts) != (self.status is Status.OK):
            raise ValueError(f"rollouts must be given exactly when status is ok, not with {self.status}")
        return self


class GenerateResponse(Message):
    """One result per prompt, in order."""

    results: list[GenerateResult]


class RolloutPiece(Message):
    """A finished rollout, number `number` of a group that is not complete yet.

    Provisional: it counts only if the group's result, which has it again, is ok.
    """

    number: Annotated[int, Field(ge=0)]
    rollout: Rollout


class IndexedGeneration(Message):
    """One item of a streamed generation: the result of prompt number `index`, or a rollout ahead of it."""

    index: int
    result: GenerateResult | None = None
    piece: RolloutPiece | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.result is None) == (self.piece is None):
            raise ValueError("either result or piece must be given")
        return self

    @model_serializer(mode="wrap")
    def _without_the_other(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Clients from before there were pieces refuse a field that they do not know, even if it is null.
        return {name: value for name, value in handler(self).items() if value is not None}
