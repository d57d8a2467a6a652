"""The wire contract as pydantic models: the mirror of `proto/guerdon/v1`, checked against it by a test.

Models are strict (``"1"`` is not 1, ``true`` is not 1.0), refuse unknown fields, NaN and infinities, and are
frozen. `guerdon.codec` turns them into protobuf messages and back.
"""

import math
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)


class JsonText:
    """Marks a field that is a JSON value in JSON and a string of JSON text in protobuf.

    protobuf's own Value keeps every number as a double: 1 would equal 1.0, and large integers would round.
    """


class Message(BaseModel):
    """Base of every wire message."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Status(StrEnum):
    """What happened to one item; only `OK` carries a value."""

    OK = "ok"
    INVALID_INPUT = "invalid_input"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    INTERNAL_ERROR = "internal_error"

    @property
    def retryable(self) -> bool:
        """True when the fault is the service's, so that the same item may succeed later."""
        return self not in (Status.OK, Status.INVALID_INPUT)


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Version = Annotated[int, Field(ge=0, lt=2**63)]


def _finite(value: JsonValue) -> JsonValue:
    # pydantic's JsonValue lets NaN through, and would write it as null.
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _finite(part)
    return value


FiniteJson = Annotated[JsonValue, AfterValidator(_finite)]
Options = dict[str, FiniteJson]


#: An empty list where samples and results by the thousand are made: a default of `[]` is copied deeply for each.
_empty: Any = Field(default_factory=list)


class ChatMessage(Message):
    """One turn of a conversation."""

    role: str
    content: str


Prompt = str | list[ChatMessage]


class CodeTest(Message):
    """One test of a program: stdin text, call arguments, or an assertion.

    `expected_args` is what the arguments are after the call; beside it `expected` may be left out, for any value.
    """

    input: str | None = None
    output: str | None = None
    outputs: list[str] = []
    args: Annotated[list[FiniteJson] | None, JsonText()] = None
    expected: Annotated[FiniteJson, JsonText()] = None
    test: str | None = None
    expected_args: Annotated[list[FiniteJson] | None, JsonText()] = None


CompareMode = Literal[
    "exact", "tokens", "lines_rstrip", "float", "unordered_lines", "any_of", "value", "checker"
]


class Compare(Message):
    """How the supervisor compares what a program produced with what was expected."""

    mode: CompareMode
    abs: Annotated[float, Field(ge=0)] | None = None
    rel: Annotated[float, Field(ge=0)] | None = None
    tuple_as_list: bool | None = None
    checker: str | None = None


class Limits(Message):
    """Resources one test may use; absent ones take the service's defaults."""

    cpu_s: Annotated[float, Field(gt=0)] | None = None
    wall_s: Annotated[float, Field(gt=0)] | None = None
    memory_mb: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    output_kb: Annotated[int, Field(gt=0, lt=2**31)] | None = None


class CodeTask(Message):
    """The tests of a program and how to run them."""

    language: Annotated[str, Field(min_length=1)] = "python"
    kind: Literal["stdio", "call", "assert", "unittest"]
    function: str | None = None
    tests: list[CodeTest] = []
    compare: Compare | None = None
    limits: Limits | None = None
    setup: str | None = None


class Sample(Message):
    """One thing to score: a response, and what the scorer needs to judge it."""

    id: str | None = None
    prompt: Prompt | None = None
    prompt_token_ids: list[TokenId] = _empty
    response: str | None = None
    response_token_ids: list[TokenId] = _empty
    references: list[str] = _empty
    outcome: Annotated[float, Field(ge=0, le=1)] | None = None
    group: str | None = None
    code: CodeTask | None = None
    metadata: Annotated[dict[str, FiniteJson] | None, JsonText()] = None


class ScoreRequest(Message):
    """A batch of samples for one scorer."""

    samples: list[Sample]
    options: Options = {}
    min_version: Version | None = None


class TestVerdict(Message):
    """What one test said of a program."""

    verdict: Literal["AC", "WA", "TLE", "MLE", "OLE", "RE", "CE"]
    message: str | None = None
    cpu_ms: float | None = None
    wall_ms: float | None = None
    memory_mb: float | None = None


class RuleVerdict(Message):
    """What one rule gave and why."""

    rule: str
    value: float
    reason: str = ""


class Span(Message):
    """Half-open range of characters and of tokens in the text that was scored.

    `sampled_tokens` of the ids before it are the response's own, as they were given; the rest up to `token_start` was
    tokenised anew.
    """

    start: int
    end: int
    token_start: int
    token_end: int
    sampled_tokens: int = 0


class ReferenceVerdict(Message):
    """What one reference answer is worth.

    `score` is its token probabilities as one number, given the response's reasoning; `baseline` the same without
    any reasoning, where it was asked for; `value` what is made of both. `span` is absent where the response has no
    place for an answer.
    """

    reference: str
    value: float
    score: float
    baseline: float | None = None
    span: Span | None = None


class Verdict(Message):
    """What a verifier says and why; each verifier fills the fields it knows."""

    extracted: str | None = None
    normalised: str | None = None
    normalised_reference: str | None = None
    method: str | None = None
    tests: list[TestVerdict] = []
    fraction: float | None = None
    profile: str | None = None
    rules: list[RuleVerdict] = []
    span: Span | None = None
    references: list[ReferenceVerdict] = []


class Result(Message):
    """The score of one sample. `value` is a number exactly when `status` is ok: failure is never a reward."""

    id: str | None = None
    status: Status
    value: float | None = None
    reason: str = ""
    verdict: Verdict | None = None
    token_rewards: list[float] = _empty
    token_ids: list[TokenId] = _empty
    queue_ms: float = 0.0
    exec_ms: float = 0.0
    scorer: str = ""
    scorer_version: str = ""
    model_version: Version | None = None
    reference_version: Version | None = None
    temperature: float | None = None
    update_order: Literal["before", "after", "none"] | None = None

    @model_validator(mode="after")
    def _value_only_when_ok(self) -> Self:
        if (self.value is not None) != (self.status is Status.OK):
            raise ValueError(f"value must be given exactly when status is ok, not with status {self.status}")
        if self.token_rewards and self.status is not Status.OK:
            raise ValueError(f"token_rewards must be empty with status {self.status}")
        if len(self.token_rewards) not in (0, len(self.token_ids)):
            raise ValueError("token_rewards and token_ids must have the same length")
        return self


class ScoreResponse(Message):
    """One result per sample, in the order of the samples."""

    results: list[Result]


class IndexedResult(Message):
    """One item of a streamed response: the result of sample number `index`."""

    index: int
    result: Result


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


class UpdateRequest(Message):
    """One online update from samples with their outcomes.

    `request_id` makes it idempotent. `order` "before" scores the batch with the updated weights, "after" with
    the weights that preceded the update. With `base_version` the update is applied to exactly that version; a
    learner that is ahead (its trainer restarted from a checkpoint) returns to it first.
    """

    request_id: Annotated[str, Field(min_length=1)]
    samples: list[Sample]
    order: Literal["before", "after"]
    base_version: Version | None = None
    options: Options = {}


class UpdateResponse(Message):
    """The scores of the updated batch, the versions before and after, and training metrics."""

    request_id: str
    status: Status
    reason: str = ""
    results: list[Result] = []
    version_before: Version | None = None
    version_after: Version | None = None
    metrics: dict[str, float] = {}
    queue_ms: float = 0.0
    exec_ms: float = 0.0
    scorer: str = ""
    scorer_version: str = ""


class VersionsRequest(Message):
    """What versions a service has; with `wait_for`, as soon as it serves that version or a newer one.

    Waits `timeout_s` seconds at most, 30 where absent.
    """

    wait_for: Version | None = None
    timeout_s: Annotated[float, Field(ge=0, le=86_400)] | None = None


class ModelVersion(Message):
    """One published set of weights."""

    version: Version
    path: str
    created_unix_s: float


class VersionsResponse(Message):
    """The current version and the ones that can still be read."""

    current: Version
    versions: list[ModelVersion] = []


class ServiceInfo(Message):
    """What a service is and what it accepts."""

    scorer: str
    scorer_version: str
    operations: list[str]
    options_schema: str
    model_version: Version | None = None
    max_request_items: int
    max_body_bytes: int
    details: dict[str, str] = {}


def failed(status: Status, reason: str, *, id: str | None = None) -> Result:
    """A result that carries no reward, only what went wrong.

    Raises:
        ValueError: `status` is ok.
    """
    return Result(id=id, status=status, reason=reason)
