"""SkyRL: an environment of one turn whose reward comes from a service.

    skyrl_gym.register(id="guerdon", entry_point="guerdon.integrations.skyrl:Env")

Rows name it as `env_class: guerdon` and hold the answer in `reward_spec.ground_truth`. Settings come from
`env_config` (`url`, `service`, `options`, `timeout_s`), else from GUERDON_URL and its like. SkyRL has no way to say
"no reward": a failure is waited out for `timeout_s` seconds and then raised. Set `max_env_workers` above 0, or each
step blocks SkyRL's event loop.

Written against skyrl-gym 0.4.0, and imports it.
"""

# The peer is not among the development tools: its types are unknown.
# pyright: basic, reportMissingImports=false

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import (
    BaseTextEnv,
    BaseTextEnvStepOutput,
)

from guerdon.columns import labelled
from guerdon.errors import value_of
from guerdon.integrations.target import target_in
from guerdon.texts import prompt_of, text_of


class Env(BaseTextEnv):
    """One response, one reward, done."""

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        config: Mapping[str, Any] = env_config or {}
        row = extras or {}
        self._target = target_in(config, default_s=600.0)
        if "ground_truth" not in (row.get("reward_spec") or {}):
            raise ValueError("reward_spec.ground_truth: missing; it holds the right answer")
        self._ground_truth = row["reward_spec"]["ground_truth"]
        self._metadata: Mapping[str, Any] | None = row.get("metadata")
        self._prompt: Any = row.get("prompt")

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        """Keep the prompt; nothing is added to it."""
        self._prompt = prompt
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """The reward of a response.

        Raises:
            GuerdonError: there is none.
        """
        sample = labelled(prompt_of(self._prompt), text_of(action), self._ground_truth, self._metadata)
        [result] = self._target.results_now([sample])
        metadata = {"reason": result.reason, "scorer": result.scorer}
        return BaseTextEnvStepOutput(observations=[], reward=value_of(result), done=True, metadata=metadata)
