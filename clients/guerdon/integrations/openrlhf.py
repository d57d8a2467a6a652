"""OpenRLHF: the file form of its remote reward, which runs in the rollout's process.

    --reward.remote_url $(python -c "import guerdon.integrations.openrlhf as m; print(m.__file__)")

The URL form needs no code of ours: `--reward.remote_url http://HOST:PORT/get_reward`. Settings come from GUERDON_URL
and its like. OpenRLHF has no way to say "no reward": it logs an exception at level INFO and fails later with another
message, so a failure is waited out for GUERDON_TIMEOUT_S seconds and then logged here, as an error.
"""

import logging
from collections.abc import Sequence
from typing import Any

from guerdon.columns import references_of, task_in
from guerdon.errors import GuerdonError
from guerdon.integrations.target import target, value_of
from guerdon.texts import response_in
from guerdon.types import Sample

#: A restart of the service should not end the run.
_TIMEOUT_S = 600.0

log = logging.getLogger("guerdon.integrations.openrlhf")


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **_: Any
) -> dict[str, Any]:
    """Rewards of whole texts, special tokens included: `rewards` and `scores` are tensors, one entry each.

    Raises:
        GuerdonError: a text has no reward.
    """
    import torch

    samples = [
        sample_of(query, prompt, label) for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    try:
        values = [value_of(result) for result in target(default_s=_TIMEOUT_S).results_now(samples)]
    except GuerdonError as error:
        log.error("OpenRLHF gets no reward: %s", error)
        raise
    rewards = torch.tensor(values, dtype=torch.float32)
    return {
        "rewards": rewards,
        "scores": rewards.clone(),
        "extra_logs": {"reward_valid": torch.ones(len(values))},
    }


def sample_of(query: str, prompt: str, label: Any) -> Sample:
    """OpenRLHF's three texts as a sample: a label is an answer, or tests where it has their shape."""
    tests = task_in(label)
    return Sample(
        prompt=prompt,
        response=response_in(query, prompt),
        references=[] if tests else references_of(label),
        code=tests,
    )
