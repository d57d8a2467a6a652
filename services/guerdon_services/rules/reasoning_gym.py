"""The procedural scorers of reasoning-gym, in worker processes: some of them evaluate the answer as Python.

The sample's metadata is {"dataset": NAME, "entry": {"question", "answer", "metadata"}}, as the trainer's data source
makes it.
"""

from typing import Literal, cast

from guerdon.types import Sample
from guerdon_services.rules.answers import AnswerFrom, answer_in
from guerdon_services.rules.base import Outcome, RuleOptions, ask, response_of
from guerdon_services.runtime.scorer import Unscorable
from guerdon_services.workers import Message, WorkerPool

#: Characters of an answer that is scored.
_MAX_ANSWER = 20_000


class ReasoningGymOptions(RuleOptions):
    """The score in [0, 1] that the dataset's own scorer gives the answer."""

    rule: Literal["reasoning_gym"]
    answer_from: AnswerFrom = "answer_tag"


def judge(options: ReasoningGymOptions, sample: Sample, pool: WorkerPool) -> Outcome:
    """Have a worker score the answer; raises as `ask` does.

    Raises:
        Unscorable: the metadata lacks a part, or names no dataset of reasoning-gym.
    """
    response = response_of(sample)
    request = _request(sample)
    answer = answer_in(response, options.answer_from)
    if answer is None:
        return Outcome(0.0, f"no answer at {options.answer_from}")
    if len(answer) > _MAX_ANSWER:
        return Outcome(0.0, f"an answer of {len(answer)} characters is too long to be scored")
    return ask(pool, {**request, "answer": answer}, f"the scorer of {request['dataset']}")


def _request(sample: Sample) -> Message:
    metadata = sample.metadata or {}
    dataset, entry = metadata.get("dataset"), metadata.get("entry")
    if not isinstance(dataset, str):
        raise Unscorable("metadata.dataset is missing: the name of a reasoning-gym dataset")
    if not isinstance(entry, dict):
        raise Unscorable("metadata.entry is missing: the entry that the dataset generated")
    for field in ("question", "answer", "metadata"):
        if field not in entry:
            raise Unscorable(f"metadata.entry.{field} is missing")
    return {"dataset": dataset, "entry": cast(Message, entry)}
