from google.protobuf import struct_pb2 as _struct_pb2
from guerdon.v1 import reward_pb2 as _reward_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UpdateRequest(_message.Message):
    __slots__ = ("request_id", "samples", "order", "base_version", "options")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    samples: _containers.RepeatedCompositeFieldContainer[_reward_pb2.Sample]
    order: str
    base_version: int
    options: _struct_pb2.Struct
    def __init__(self, request_id: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[_reward_pb2.Sample, _Mapping]]] = ..., order: _Optional[str] = ..., base_version: _Optional[int] = ..., options: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ("request_id", "status", "reason", "results", "version_before", "version_after", "metrics", "queue_ms", "exec_ms", "scorer", "scorer_version")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_BEFORE_FIELD_NUMBER: _ClassVar[int]
    VERSION_AFTER_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    EXEC_MS_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    SCORER_VERSION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    status: _reward_pb2.Status
    reason: str
    results: _containers.RepeatedCompositeFieldContainer[_reward_pb2.Result]
    version_before: int
    version_after: int
    metrics: _containers.ScalarMap[str, float]
    queue_ms: float
    exec_ms: float
    scorer: str
    scorer_version: str
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[_reward_pb2.Status, str]] = ..., reason: _Optional[str] = ..., results: _Optional[_Iterable[_Union[_reward_pb2.Result, _Mapping]]] = ..., version_before: _Optional[int] = ..., version_after: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., queue_ms: _Optional[float] = ..., exec_ms: _Optional[float] = ..., scorer: _Optional[str] = ..., scorer_version: _Optional[str] = ...) -> None: ...

class VersionsRequest(_message.Message):
    __slots__ = ("wait_for", "timeout_s")
    WAIT_FOR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    wait_for: int
    timeout_s: float
    def __init__(self, wait_for: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("version", "path", "created_unix_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    path: str
    created_unix_s: float
    def __init__(self, version: _Optional[int] = ..., path: _Optional[str] = ..., created_unix_s: _Optional[float] = ...) -> None: ...

class VersionsResponse(_message.Message):
    __slots__ = ("current", "versions")
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    current: int
    versions: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, current: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ...) -> None: ...
