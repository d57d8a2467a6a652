"""OpenRLHF: the file form of its remote reward, which runs in the rollout's process.

    --reward.remote_url $(python -c "import guerdon.integrations.openrlhf as m; print(m.__file__)")

The URL form needs no code of ours: `--reward.remote_url http://HOST:PORT/get_reward`. Settings come from GUERDON_URL
and its like. OpenRLHF has no way to say "no reward": it logs an exception at level INFO and fails later with another
message, so a failure is waited out for GUERDON_TIMEOUT_S seconds and then logged here, as an error.
"""

import logging
from collections.abc import Sequence
from typing import Any

from guerdon.columns import labelled
from guerdon.errors import value_of
from guerdon.integrations.target import target
from guerdon.texts import response_in

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

    try:
        samples = [
            labelled(prompt, response_in(query, prompt), label)
            for query, prompt, label in zip(queries, prompts, labels, strict=True)
        ]
        values = [value_of(result) for result in target(default_s=_TIMEOUT_S).results_now(samples)]
    except Exception as error:
        log.error("OpenRLHF gets no reward: %s", error)
        raise
    rewards = torch.tensor(values, dtype=torch.float32)
    return {
        "rewards": rewards,
        # What dynamic filtering compares with its bounds, in [0, 1].
        "scores": rewards.clamp(0.0, 1.0),
        "extra_logs": {"reward_valid": torch.ones(len(values))},
    }
