"""TRL: a reward function for `GRPOTrainer`, `RLOOTrainer` and the experimental AsyncGRPO.

    trainer = GRPOTrainer(model, reward_funcs=guerdon.integrations.trl.reward("http://127.0.0.1:8101"), ...)

TRL awaits asynchronous reward functions together, takes `None` as "no reward", and leaves a completion for which
every function gave None out of its group's baseline. With several functions it adds up what there is, so that
None from one of them counts as 0: give TRL one function, and mix with `rewards="rewards.yaml"`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from guerdon.columns import Columns
from guerdon.errors import InvalidRequest, value_of
from guerdon.integrations.target import Target, target
from guerdon.texts import prompt_of, text_of
from guerdon.types import Result, Sample

#: What TRL passes beside the columns of the data set.
_NOT_COLUMNS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
#: What has a length and is no column.
_NOT_LISTS: tuple[type, ...] = (str, bytes, dict)


class RewardFunction:
    """An asynchronous reward function with a name of its own, which may be pickled.

    Called with lists, one entry per completion; returns one float or None each. After `stop_after` calls in a row in
    which no completion got a reward, it raises: a run without rewards learns nothing.
    """

    def __init__(
        self, asked: Target, columns: Columns, name: str, *, token_ids: bool, stop_after: int
    ) -> None:
        self._target = asked
        self._columns = columns
        self._token_ids = token_ids
        self._stop_after = stop_after
        self._without = 0
        # TRL before 1.12 asks `inspect.iscoroutinefunction` of the object itself, which looks for these.
        self.__name__ = self.__qualname__ = name
        self.__defaults__ = self.__kwdefaults__ = None

    @property
    def __code__(self) -> Any:
        return type(self).__call__.__code__

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """One reward per completion, None where there is none.

        Raises:
            InvalidRequest: the URL, the options or a column's name are wrong.
            Unauthorized: the service wants another token.
            GuerdonError: no completion of `stop_after` calls in a row got a reward; it says why the last one did not.
        """
        rows = _rows(columns, len(completions))
        _check_length("prompts", prompts, len(completions))
        if completion_ids is not None:
            _check_length("completion_ids", completion_ids, len(completions))
        samples = [
            self._sample(row, prompt, completion, completion_ids[index] if completion_ids else ())
            for index, (row, prompt, completion) in enumerate(zip(rows, prompts, completions, strict=True))
        ]
        results = await self._target.results(samples)
        self._count(results, columns.get("log_metric"))
        return [result.value for result in results]

    def _sample(
        self, row: Mapping[str, Any], prompt: Any, completion: Any, token_ids: Sequence[int]
    ) -> Sample:
        return self._columns.judged(
            row,
            prompt=prompt_of(prompt),
            response=text_of(completion),
            response_token_ids=token_ids if self._token_ids else (),
        )

    def _count(self, results: Sequence[Result], log_metric: Callable[[str, float], None] | None) -> None:
        missing = [result for result in results if result.value is None]
        if log_metric is not None and results:
            log_metric(f"rewards/{self.__name__}/without", len(missing) / len(results))
        self._without = self._without + 1 if results and len(missing) == len(results) else 0
        if self._without >= self._stop_after:
            value_of(missing[-1])


def reward(
    url: str | None = None,
    *,
    service: str | None = None,
    options: Mapping[str, Any] | None = None,
    rewards: str | None = None,
    name: str | None = None,
    columns: Columns | None = None,
    references: str | None = None,
    token_ids: bool = False,
    timeout_s: float | None = None,
    stop_after: int = 10,
) -> RewardFunction:
    """A reward function for `reward_funcs`.

    `url`, `service`, `options` and `timeout_s` are those of `guerdon.Client`; `rewards` is a YAML file that mixes
    several services. `references` names the column with the right answer (else the usual names are tried), `columns`
    says more. `name` is what TRL calls the reward in its metrics. With `token_ids` the service also gets the sampled
    token ids, which process rewards want.
    """
    asked = target(url, service=service, options=options, rewards=rewards, timeout_s=timeout_s)
    if columns is None:
        columns = Columns(references=references)
    shown = name or asked.service or ("guerdon" if asked.rewards is None else "rewards")
    return RewardFunction(asked, columns, shown, token_ids=token_ids, stop_after=stop_after)


def _rows(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The data set's rows, of the columns that TRL passes as lists.

    Raises:
        InvalidRequest: a column has no entry per completion.
    """
    kept = {name: values for name, values in columns.items() if name not in _NOT_COLUMNS}
    for name, values in kept.items():
        _check_length(name, values, count)
    return [{name: values[index] for name, values in kept.items()} for index in range(count)]


def _check_length(name: str, values: Any, count: int) -> None:
    """Refuse a column that is not one entry per completion."""
    listed = hasattr(values, "__len__") and not isinstance(values, _NOT_LISTS)
    if not listed:
        raise InvalidRequest(f"{name}: must be a list, not {type(values).__name__}")
    if len(values) != count:
        raise InvalidRequest(f"{name}: {len(values)} entries for {count} completions")
