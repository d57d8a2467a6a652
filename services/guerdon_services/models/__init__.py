"""Causal language models for services: loading one, encoding samples for it, following published weights."""

from guerdon_services.models.encoding import (
    approximate_tokens,
    check_characters,
    check_ids,
    check_length,
    encode_prompt,
    encode_response,
    refusals,
)
from guerdon_services.models.following import (
    FollowedModel,
    FollowerSettings,
    FollowingScorer,
    WeightsLocation,
    kept_versions,
)
from guerdon_services.models.loading import (
    HalfRead,
    LanguageModel,
    WeightsMismatch,
    device_memory,
    load,
    load_tokenizer,
    read_weights,
    set_threads,
)

__all__ = [
    "FollowedModel",
    "FollowerSettings",
    "FollowingScorer",
    "HalfRead",
    "LanguageModel",
    "WeightsLocation",
    "WeightsMismatch",
    "approximate_tokens",
    "check_characters",
    "check_ids",
    "check_length",
    "device_memory",
    "encode_prompt",
    "encode_response",
    "kept_versions",
    "load",
    "load_tokenizer",
    "read_weights",
    "refusals",
    "set_threads",
]
