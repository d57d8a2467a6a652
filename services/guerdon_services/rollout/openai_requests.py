"""What OpenAI clients may ask of a policy, and as which `GenerateRequest` it is run.

The parameters of `/v1/completions` and `/v1/chat/completions` that sampling has a meaning for; the others are refused
by name unless they have the value that changes nothing. Extensions that vLLM's server has too: `top_k`, `min_p`,
`repetition_penalty`, `stop_token_ids`, `min_tokens`, `ignore_eos`, `return_token_ids`. One of ours: `min_version`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guerdon.types import ChatMessage, GenerateRequest, GenerateSample, Prompt, Sampling

#: What a request may say without changing anything; any other value is refused.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "logit_bias": ({},),
    "metadata": ({},),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}

#: What may be given in several forms; what is none of them is refused in these words.
_FORMS: Mapping[str, str] = {
    "prompt": "must be a string, a list of strings, a list of token ids or a list of such lists, and not empty",
    "stop": "must be a string or a list of strings, none of them empty",
}

TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class BadParameter(Exception):
    """A parameter is wrong or not supported; `param` is its name."""

    def __init__(self, param: str, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class _Request(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=1024)] = 1
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: -1 and 0 are off.
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] = []
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 0
    ignore_eos: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Annotated[str, Field(min_length=1)] | list[Annotated[str, Field(min_length=1)]] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    min_version: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    #: Whom the request is for: of no consequence here.
    user: str | None = None

    def sampling(self, max_new_tokens: int) -> Sampling:
        """The sampling parameters of the native request."""
        return Sampling(
            n=self.n,
            max_new_tokens=max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            seed=self.seed,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop,
            stop_token_ids=self.stop_token_ids,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            min_new_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
        )


class CompletionRequest(_Request):
    """`POST /v1/completions`."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1)]
    )
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] = 16
    #: Log-probs of the sampled tokens; alternatives are not computed, so that 0 and 1 mean the same.
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether choices carry log-probs."""
        return self.logprobs is not None

    def native(self) -> GenerateRequest:
        """As a request to the service: one sample per prompt."""
        prompts: list[str | list[int]]
        if isinstance(self.prompt, str):
            prompts = [self.prompt]
        elif isinstance(self.prompt[0], int):
            prompts = [[token for token in self.prompt if isinstance(token, int)]]
        else:
            prompts = [prompt for prompt in self.prompt if not isinstance(prompt, int)]
        samples = [
            GenerateSample(prompt=prompt)
            if isinstance(prompt, str)
            else GenerateSample(prompt_token_ids=prompt)
            for prompt in prompts
        ]
        sampling = self.sampling(self.max_tokens)
        return GenerateRequest(samples=samples, sampling=sampling, min_version=self.min_version)


class TextPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class InputMessage(BaseModel):
    """One turn of the conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str | list[TextPart]

    def native(self) -> ChatMessage:
        """With its pieces joined."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return ChatMessage(role=self.role, content=text)


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[InputMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool = False

    @property
    def wants_logprobs(self) -> bool:
        """Whether choices carry log-probs."""
        return self.logprobs

    def native(self) -> GenerateRequest:
        """As a request to the service; 256 new tokens unless the request says otherwise."""
        messages: Prompt = [message.native() for message in self.messages]
        limit = self.max_completion_tokens or self.max_tokens or 256
        samples = [GenerateSample(prompt=messages)]
        return GenerateRequest(samples=samples, sampling=self.sampling(limit), min_version=self.min_version)


def parse(kind: type[CompletionRequest] | type[ChatRequest], body: Any) -> CompletionRequest | ChatRequest:
    """A request body as its model; null means absent, as in OpenAI's own API.

    Raises:
        BadParameter: names the parameter that is wrong or not supported.
    """
    if not isinstance(body, dict):
        raise BadParameter("body", "the body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    if given.get("best_of") == given.get("n", 1):
        given.pop("best_of")
    for name, neutral in _NEUTRAL.items():
        if name in given and name not in kind.model_fields:
            if given[name] not in neutral:
                raise BadParameter(name, f"{name} is not supported", code="unsupported_parameter")
            del given[name]
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "body"
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            raise BadParameter(name, f"{name} is not supported", code="unsupported_parameter") from None
        if name in _FORMS and first["type"] != "missing":
            raise BadParameter(name, f"{name}: {_FORMS[name]}") from None
        where = ".".join(str(part) for part in first["loc"]) or name
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        raise BadParameter(name, f"{where}: {first['msg']}", code=code) from None
