from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_OK: _ClassVar[Status]
    STATUS_INVALID_INPUT: _ClassVar[Status]
    STATUS_TIMEOUT: _ClassVar[Status]
    STATUS_OVERLOADED: _ClassVar[Status]
    STATUS_UNAVAILABLE: _ClassVar[Status]
    STATUS_INTERNAL_ERROR: _ClassVar[Status]
STATUS_UNSPECIFIED: Status
STATUS_OK: Status
STATUS_INVALID_INPUT: Status
STATUS_TIMEOUT: Status
STATUS_OVERLOADED: Status
STATUS_UNAVAILABLE: Status
STATUS_INTERNAL_ERROR: Status

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("text", "chat")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: Chat
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("id", "prompt", "prompt_token_ids", "response", "response_token_ids", "references", "outcome", "group", "code", "metadata")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    prompt: Prompt
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    response: str
    response_token_ids: _containers.RepeatedScalarFieldContainer[int]
    references: _containers.RepeatedScalarFieldContainer[str]
    outcome: float
    group: str
    code: CodeTask
    metadata: str
    def __init__(self, id: _Optional[str] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., response: _Optional[str] = ..., response_token_ids: _Optional[_Iterable[int]] = ..., references: _Optional[_Iterable[str]] = ..., outcome: _Optional[float] = ..., group: _Optional[str] = ..., code: _Optional[_Union[CodeTask, _Mapping]] = ..., metadata: _Optional[str] = ...) -> None: ...

class CodeTask(_message.Message):
    __slots__ = ("language", "kind", "function", "tests", "compare", "limits", "setup")
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    language: str
    kind: str
    function: str
    tests: _containers.RepeatedCompositeFieldContainer[CodeTest]
    compare: Compare
    limits: Limits
    setup: str
    def __init__(self, language: _Optional[str] = ..., kind: _Optional[str] = ..., function: _Optional[str] = ..., tests: _Optional[_Iterable[_Union[CodeTest, _Mapping]]] = ..., compare: _Optional[_Union[Compare, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., setup: _Optional[str] = ...) -> None: ...

class CodeTest(_message.Message):
    __slots__ = ("input", "output", "outputs", "args", "expected", "test", "expected_args")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ARGS_FIELD_NUMBER: _ClassVar[int]
    input: str
    output: str
    outputs: _containers.RepeatedScalarFieldContainer[str]
    args: str
    expected: str
    test: str
    expected_args: str
    def __init__(self, input: _Optional[str] = ..., output: _Optional[str] = ..., outputs: _Optional[_Iterable[str]] = ..., args: _Optional[str] = ..., expected: _Optional[str] = ..., test: _Optional[str] = ..., expected_args: _Optional[str] = ...) -> None: ...

class Compare(_message.Message):
    __slots__ = ("mode", "abs", "rel", "tuple_as_list", "checker")
    MODE_FIELD_NUMBER: _ClassVar[int]
    ABS_FIELD_NUMBER: _ClassVar[int]
    REL_FIELD_NUMBER: _ClassVar[int]
    TUPLE_AS_LIST_FIELD_NUMBER: _ClassVar[int]
    CHECKER_FIELD_NUMBER: _ClassVar[int]
    mode: str
    abs: float
    rel: float
    tuple_as_list: bool
    checker: str
    def __init__(self, mode: _Optional[str] = ..., abs: _Optional[float] = ..., rel: _Optional[float] = ..., tuple_as_list: bool = ..., checker: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("cpu_s", "wall_s", "memory_mb", "output_kb")
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_KB_FIELD_NUMBER: _ClassVar[int]
    cpu_s: float
    wall_s: float
    memory_mb: int
    output_kb: int
    def __init__(self, cpu_s: _Optional[float] = ..., wall_s: _Optional[float] = ..., memory_mb: _Optional[int] = ..., output_kb: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("samples", "options", "min_version")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    options: _struct_pb2.Struct
    min_version: int
    def __init__(self, samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., options: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., min_version: _Optional[int] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ...) -> None: ...

class IndexedResult(_message.Message):
    __slots__ = ("index", "result")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    index: int
    result: Result
    def __init__(self, index: _Optional[int] = ..., result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("id", "status", "value", "reason", "verdict", "token_rewards", "token_ids", "queue_ms", "exec_ms", "scorer", "scorer_version", "model_version", "reference_version", "temperature", "update_order")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_REWARDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    EXEC_MS_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    SCORER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_ORDER_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: Status
    value: float
    reason: str
    verdict: Verdict
    token_rewards: _containers.RepeatedScalarFieldContainer[float]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    queue_ms: float
    exec_ms: float
    scorer: str
    scorer_version: str
    model_version: int
    reference_version: int
    temperature: float
    update_order: str
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[Status, str]] = ..., value: _Optional[float] = ..., reason: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., token_rewards: _Optional[_Iterable[float]] = ..., token_ids: _Optional[_Iterable[int]] = ..., queue_ms: _Optional[float] = ..., exec_ms: _Optional[float] = ..., scorer: _Optional[str] = ..., scorer_version: _Optional[str] = ..., model_version: _Optional[int] = ..., reference_version: _Optional[int] = ..., temperature: _Optional[float] = ..., update_order: _Optional[str] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("extracted", "normalised", "normalised_reference", "method", "tests", "fraction", "profile", "rules", "span", "references")
    EXTRACTED_FIELD_NUMBER: _ClassVar[int]
    NORMALISED_FIELD_NUMBER: _ClassVar[int]
    NORMALISED_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    extracted: str
    normalised: str
    normalised_reference: str
    method: str
    tests: _containers.RepeatedCompositeFieldContainer[TestVerdict]
    fraction: float
    profile: str
    rules: _containers.RepeatedCompositeFieldContainer[RuleVerdict]
    span: Span
    references: _containers.RepeatedCompositeFieldContainer[ReferenceVerdict]
    def __init__(self, extracted: _Optional[str] = ..., normalised: _Optional[str] = ..., normalised_reference: _Optional[str] = ..., method: _Optional[str] = ..., tests: _Optional[_Iterable[_Union[TestVerdict, _Mapping]]] = ..., fraction: _Optional[float] = ..., profile: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[RuleVerdict, _Mapping]]] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., references: _Optional[_Iterable[_Union[ReferenceVerdict, _Mapping]]] = ...) -> None: ...

class TestVerdict(_message.Message):
    __slots__ = ("verdict", "message", "cpu_ms", "wall_ms", "memory_mb")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CPU_MS_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    message: str
    cpu_ms: float
    wall_ms: float
    memory_mb: float
    def __init__(self, verdict: _Optional[str] = ..., message: _Optional[str] = ..., cpu_ms: _Optional[float] = ..., wall_ms: _Optional[float] = ..., memory_mb: _Optional[float] = ...) -> None: ...

class RuleVerdict(_message.Message):
    __slots__ = ("rule", "value", "reason")
    RULE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rule: str
    value: float
    reason: str
    def __init__(self, rule: _Optional[str] = ..., value: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class ReferenceVerdict(_message.Message):
    __slots__ = ("reference", "value", "score", "baseline", "span")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    reference: str
    value: float
    score: float
    baseline: float
    span: Span
    def __init__(self, reference: _Optional[str] = ..., value: _Optional[float] = ..., score: _Optional[float] = ..., baseline: _Optional[float] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end", "token_start", "token_end", "sampled_tokens")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TOKEN_START_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    token_start: int
    token_end: int
    sampled_tokens: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., token_start: _Optional[int] = ..., token_end: _Optional[int] = ..., sampled_tokens: _Optional[int] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServiceInfo(_message.Message):
    __slots__ = ("scorer", "scorer_version", "operations", "options_schema", "model_version", "max_request_items", "max_body_bytes", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCORER_FIELD_NUMBER: _ClassVar[int]
    SCORER_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    scorer: str
    scorer_version: str
    operations: _containers.RepeatedScalarFieldContainer[str]
    options_schema: str
    model_version: int
    max_request_items: int
    max_body_bytes: int
    details: _containers.ScalarMap[str, str]
    def __init__(self, scorer: _Optional[str] = ..., scorer_version: _Optional[str] = ..., operations: _Optional[_Iterable[str]] = ..., options_schema: _Optional[str] = ..., model_version: _Optional[int] = ..., max_request_items: _Optional[int] = ..., max_body_bytes: _Optional[int] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...
