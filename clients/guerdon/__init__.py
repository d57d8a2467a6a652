"""Guerdon: rewards for reinforcement learning on language models, over HTTP, gRPC or a Redis queue.

    from guerdon import Client, Sample

    sample = Sample(prompt="What is 1/2 + 1/4?", response=r"So it is \\boxed{3/4}.", references=["0.75"])
    with Client("http://127.0.0.1:8101") as client:         # or grpc://..., or redis://... with service="math"
        for result in client.score([sample]):
            if result.value is None:                        # a failure is never a reward
                print(f"no reward: {result.status}, {result.reason}")
            else:
                print(result.value, result.reason)

`AsyncClient` has the same methods for asyncio, `score_many` scores thousands of samples with a progress bar, and
`Rewards` mixes several services; `guerdon.integrations` has the one line for other trainers. What concerns one item
is the `status` of its result; what concerns a whole request is a `GuerdonError` (`guerdon.errors` draws the tree).
Test with `guerdon.testing`.
"""

from guerdon.blocking import Client
from guerdon.bulk import score_many
from guerdon.client import AsyncClient
from guerdon.errors import (
    GuerdonError,
    InternalError,
    InvalidRequest,
    Overloaded,
    ServiceFailure,
    Timeout,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from guerdon.rewards import Rewards
from guerdon.types import (
    ChatMessage,
    CodeTask,
    CodeTest,
    Compare,
    GenerateResult,
    GenerateSample,
    Limits,
    ModelVersion,
    Options,
    Prompt,
    ReferenceVerdict,
    Result,
    Rollout,
    RolloutPiece,
    RuleVerdict,
    Sample,
    Sampling,
    ServiceInfo,
    Span,
    Status,
    TestVerdict,
    UpdateRequest,
    UpdateResponse,
    Verdict,
    VersionsResponse,
)

__all__ = [
    "AsyncClient",
    "ChatMessage",
    "Client",
    "CodeTask",
    "CodeTest",
    "Compare",
    "GenerateResult",
    "GenerateSample",
    "GuerdonError",
    "InternalError",
    "InvalidRequest",
    "Limits",
    "ModelVersion",
    "Options",
    "Overloaded",
    "Prompt",
    "ReferenceVerdict",
    "Result",
    "Rewards",
    "Rollout",
    "RolloutPiece",
    "RuleVerdict",
    "Sample",
    "Sampling",
    "ServiceFailure",
    "ServiceInfo",
    "Span",
    "Status",
    "TestVerdict",
    "Timeout",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UpdateRequest",
    "UpdateResponse",
    "Verdict",
    "VersionsResponse",
    "score_many",
]
