"""verifiers, and prime-rl on top of it: a reward that raises when there is none.

    [env.taskset.task.rewards.guerdon]
    fn = "guerdon.integrations.verifiers:reward"
    weight = 1.0

Settings come from GUERDON_URL and its like. verifiers makes a TaskError of what is raised, the trace has an error and
no reward, and prime-rl does not train on it. The Rubrics of verifiers before 0.2 score an exception 0.0: use
`rubric()`, whose exceptions pass.
"""

from importlib import import_module
from typing import Any

from guerdon.columns import Columns
from guerdon.errors import value_of
from guerdon.integrations.target import columns_from_environment, target
from guerdon.texts import prompt_of, text_of


async def reward(task: Any, trace: Any) -> float:
    """The reward of a trace's last reply; the right answer is the task's `answer`, or what GUERDON_COLUMNS says.

    Raises:
        GuerdonError: there is no reward.
    """
    row: dict[str, Any] = task.model_dump(mode="json")
    sample = columns_from_environment().judged(
        row, prompt=task.prompt_text or None, response=trace.last_reply
    )
    [result] = await target().results([sample])
    return value_of(result)


def rubric(
    url: str | None = None, *, weight: float = 1.0, columns: Columns | None = None, **service: Any
) -> Any:
    """A `verifiers.Rubric` (verifiers before 0.2) of this reward; `service` as in `guerdon.integrations.trl.reward`.

    What the reward raises leaves the Rubric instead of becoming 0.0.
    """
    verifiers: Any = import_module("verifiers")

    asked, mapped = target(url, **service), columns or Columns()

    async def guerdon(prompt: Any, completion: Any, answer: Any = None, info: Any = None, **_: Any) -> float:
        row: dict[str, Any] = {"answer": answer, **(info or {})}
        sample = mapped.judged(row, prompt=prompt_of(prompt), response=text_of(completion))
        [result] = await asked.results([sample])
        return value_of(result)

    async def call(self: Any, func: Any, state: Any) -> float:
        return float(await func(**self.score_objects(state)))

    kind: Any = type("Rubric", (verifiers.Rubric,), {"_call_individual_reward_func": call})
    return kind(funcs=[guerdon], weights=[weight])
