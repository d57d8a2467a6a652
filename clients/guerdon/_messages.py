"""What every message of the contract is made of; see `guerdon.types`."""

import math
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue


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
EMPTY: Any = Field(default_factory=list)


class ChatMessage(Message):
    """One turn of a conversation."""

    role: str
    content: str


Prompt = str | list[ChatMessage]
