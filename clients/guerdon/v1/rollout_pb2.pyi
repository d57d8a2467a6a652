from guerdon.v1 import reward_pb2 as _reward_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sampling(_message.Message):
    __slots__ = ("n", "max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_new_tokens", "ignore_eos", "raw_logprobs")
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    RAW_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    n: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    min_new_tokens: int
    ignore_eos: bool
    raw_logprobs: bool
    def __init__(self, n: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., min_new_tokens: _Optional[int] = ..., ignore_eos: bool = ..., raw_logprobs: bool = ...) -> None: ...

class GenerateSample(_message.Message):
    __slots__ = ("id", "prompt", "prompt_token_ids", "seed")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    id: str
    prompt: _reward_pb2.Prompt
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    def __init__(self, id: _Optional[str] = ..., prompt: _Optional[_Union[_reward_pb2.Prompt, _Mapping]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("samples", "sampling", "min_version", "each_rollout")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EACH_ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[GenerateSample]
    sampling: Sampling
    min_version: int
    each_rollout: bool
    def __init__(self, samples: _Optional[_Iterable[_Union[GenerateSample, _Mapping]]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., min_version: _Optional[int] = ..., each_rollout: bool = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("response", "token_ids", "logprobs", "finish_reason", "model_version", "raw_logprobs", "last_version")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RAW_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    response: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    finish_reason: str
    model_version: int
    raw_logprobs: _containers.RepeatedScalarFieldContainer[float]
    last_version: int
    def __init__(self, response: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., finish_reason: _Optional[str] = ..., model_version: _Optional[int] = ..., raw_logprobs: _Optional[_Iterable[float]] = ..., last_version: _Optional[int] = ...) -> None: ...

class GenerateResult(_message.Message):
    __slots__ = ("id", "status", "reason", "rollouts", "prompt_token_ids", "queue_ms", "exec_ms", "scorer", "scorer_version")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    EXEC_MS_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    SCORER_VERSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: _reward_pb2.Status
    reason: str
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    queue_ms: float
    exec_ms: float
    scorer: str
    scorer_version: str
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[_reward_pb2.Status, str]] = ..., reason: _Optional[str] = ..., rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., queue_ms: _Optional[float] = ..., exec_ms: _Optional[float] = ..., scorer: _Optional[str] = ..., scorer_version: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GenerateResult]
    def __init__(self, results: _Optional[_Iterable[_Union[GenerateResult, _Mapping]]] = ...) -> None: ...

class RolloutPiece(_message.Message):
    __slots__ = ("number", "rollout")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    number: int
    rollout: Rollout
    def __init__(self, number: _Optional[int] = ..., rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class IndexedGeneration(_message.Message):
    __slots__ = ("index", "result", "piece")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    index: int
    result: GenerateResult
    piece: RolloutPiece
    def __init__(self, index: _Optional[int] = ..., result: _Optional[_Union[GenerateResult, _Mapping]] = ..., piece: _Optional[_Union[RolloutPiece, _Mapping]] = ...) -> None: ...
