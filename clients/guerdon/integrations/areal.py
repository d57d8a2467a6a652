"""AReaL: a reward function for `RLVRWorkflow`.

    reward_fn="guerdon.integrations.areal.reward"

Settings come from GUERDON_URL and its like. AReaL runs it in worker processes, gives it 15 seconds and three more
attempts, and takes a timeout of its own as reward 0; an exception of the last attempt ends the run. So this gives up
after 12 seconds and raises: what AReaL sees is never its own timeout. A run whose services restart needs them back
within those attempts.
"""

from typing import Any

from guerdon.errors import value_of
from guerdon.integrations.target import columns_from_environment, target
from guerdon.texts import ended_text_of, prompt_of

#: AReaL kills nothing after its 15 seconds, but counts 0: end well before.
_MOST_S = 12.0


def reward(
    prompt: Any, completions: str, prompt_ids: Any = None, completion_ids: Any = None, **row: Any
) -> float:
    """The reward of a completion, which AReaL decodes with its special tokens; `row` is the data set's.

    Raises:
        GuerdonError: there is no reward.
    """
    sample = columns_from_environment().judged(
        row, prompt=prompt_of(prompt), response=ended_text_of(completions)
    )
    [result] = target(most_s=_MOST_S).results_now([sample])
    return value_of(result)
