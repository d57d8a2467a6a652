"""Where numbers and texts of a run go besides its folder: TensorBoard, and what else the recipe's `tracking` names.

Each tracker is a library of its own and is imported only when it is asked for. They find their servers and accounts
as they always do: WANDB_API_KEY and WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID and so on. A run that is resumed
goes on under the same name in each of them; steps that it repeats are written again.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

#: The project, or experiment, that runs belong to where the environment names none.
PROJECT = "guerdon"

#: By name: the module to import and the package that brings it.
_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
}


class TrackerMissing(RuntimeError):
    """The recipe names a tracker whose package is not installed; the message says what to install."""


@dataclass(frozen=True)
class Tracked:
    """The run as trackers know it. `id` is its own and outlives restarts; steps up to `last_step` are kept."""

    id: str
    name: str
    folder: Path
    last_step: int
    config: Mapping[str, Any]


class Tracker(Protocol):
    """One place to write to."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step by their tags, such as `train/reward`."""
        ...

    def text(self, step: int, tag: str, text: str) -> None:
        """A readable text of a step."""
        ...

    def close(self) -> None:
        """Write out what is left."""
        ...


def check_trackers(names: Sequence[str]) -> None:
    """Make sure that every tracker's package is there.

    Raises:
        TrackerMissing: one is not.
    """
    for name in names:
        module, package = _PACKAGES[name]
        if find_spec(module) is None:
            raise TrackerMissing(f"tracking names {name}, which is not installed: pip install {package}")


class Trackers:
    """All trackers of a run as one. Opens them; close it."""

    def __init__(self, names: Sequence[str], run: Tracked) -> None:
        check_trackers(names)
        self._closing = ExitStack()
        self._trackers: list[Tracker] = []
        with ExitStack() as opening:
            for name in names:
                tracker = _OPEN[name](run)
                opening.callback(tracker.close)
                self._trackers.append(tracker)
            self._closing = opening.pop_all()

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.numbers`."""
        for tracker in self._trackers:
            tracker.numbers(step, values)

    def text(self, step: int, tag: str, text: str) -> None:
        """See `Tracker.text`."""
        for tracker in self._trackers:
            tracker.text(step, tag, text)

    def close(self) -> None:
        """See `Tracker.close`."""
        self._closing.close()


class TensorBoard:
    """Event files in the run folder."""

    def __init__(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.last_step + 1)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.numbers`."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def text(self, step: int, tag: str, text: str) -> None:
        """Indented by four: TensorBoard reads Markdown, and this is to be shown as it stands."""
        self._writer.add_text(tag, "\n".join(f"    {line}" for line in text.splitlines()), step)

    def close(self) -> None:
        """See `Tracker.close`."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, in the project WANDB_PROJECT."""

    def __init__(self, run: Tracked) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._wandb: Any = wandb
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = wandb.init(
            project=project,
            id=run.id,
            name=run.name,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(silent=True),
        )
        # Its own step only ever grows; a resumed run repeats some of ours.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.numbers`."""
        self._run.log({**values, "step": step})

    def text(self, step: int, tag: str, text: str) -> None:
        """See `Tracker.text`."""
        self._run.log({tag: self._wandb.Html(f"<pre>{escape(text)}</pre>"), "step": step})

    def close(self) -> None:
        """See `Tracker.close`."""
        self._run.finish()


class Mlflow:
    """A run of MLflow, in the experiment MLFLOW_EXPERIMENT_NAME; found again by its tag `guerdon.run`."""

    def __init__(self, run: Tracked) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        self._client: Any = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([experiment_id], f"tags.`guerdon.run` = '{run.id}'", max_results=1)
        if found:
            self._run_id: str = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return
        made = self._client.create_run(experiment_id, run_name=run.name, tags={"guerdon.run": run.id})
        self._run_id = made.info.run_id
        self._client.log_dict(self._run_id, dict(run.config), "config.yaml")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.numbers`."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now_ms = int(time.time() * 1000)
        metrics = [Metric(tag, float(value), now_ms, step) for tag, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def text(self, step: int, tag: str, text: str) -> None:
        """A file among the run's artifacts."""
        self._client.log_text(self._run_id, text, f"{tag}/step-{step:06d}.txt")

    def close(self) -> None:
        """See `Tracker.close`."""
        self._client.set_terminated(self._run_id)


class Trackio:
    """A run of trackio, in the project TRACKIO_PROJECT."""

    def __init__(self, run: Tracked) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio: Any = trackio
        trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{run.name}-{run.id}",
            resume="allow",
            config=dict(run.config),
        )

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.numbers`."""
        self._trackio.log(dict(values), step=step)

    def text(self, step: int, tag: str, text: str) -> None:
        """See `Tracker.text`."""
        self._trackio.log({tag: self._trackio.Markdown(f"```\n{text}\n```")}, step=step)

    def close(self) -> None:
        """See `Tracker.close`."""
        self._trackio.finish()


_OPEN: dict[str, Callable[[Tracked], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": Mlflow,
    "trackio": Trackio,
}
