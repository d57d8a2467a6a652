"""The wire contract as pydantic models: the mirror of `proto/guerdon/v1`, checked against it by a test.

Models are strict (``"1"`` is not 1, ``true`` is not 1.0), refuse unknown fields, NaN and infinities, and are
frozen. `guerdon.codec` turns them into protobuf messages and back.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from guerdon._generation import (
    GenerateRequest,
    GenerateResponse,
    GenerateResult,
    GenerateSample,
    IndexedGeneration,
    Rollout,
    RolloutPiece,
    Sampling,
)
from guerdon._messages import (
    EMPTY,
    ChatMessage,
    FiniteJson,
    JsonText,
    Message,
    Options,
    Prompt,
    Status,
    TokenId,
    Version,
)

__all__ = [
    "ChatMessage",
    "CodeTask",
    "CodeTest",
    "Compare",
    "CompareMode",
    "FiniteJson",
    "GenerateRequest",
    "GenerateResponse",
    "GenerateResult",
    "GenerateSample",
    "IndexedGeneration",
    "IndexedResult",
    "JsonText",
    "Limits",
    "Message",
    "ModelVersion",
    "Options",
    "Prompt",
    "ReferenceVerdict",
    "Result",
    "Rollout",
    "RolloutPiece",
    "RuleVerdict",
    "Sample",
    "Sampling",
    "ScoreRequest",
    "ScoreResponse",
    "ServiceInfo",
    "Span",
    "Status",
    "TestVerdict",
    "TokenId",
    "UpdateRequest",
    "UpdateResponse",
    "Verdict",
    "Version",
    "VersionsRequest",
    "VersionsResponse",
    "failed",
]


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
    prompt_token_ids: list[TokenId] = EMPTY
    response: str | None = None
    response_token_ids: list[TokenId] = EMPTY
    references: list[str] = EMPTY
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
    token_rewards: list[float] = EMPTY
    token_ids: list[TokenId] = EMPTY
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
