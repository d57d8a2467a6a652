"""Inference engines: one file each, chosen by the setting `engine`."""

from guerdon_services.rollout.engine import Engine
from guerdon_services.rollout.settings import RolloutSettings


def open_engine(settings: RolloutSettings) -> Engine:
    """Load the engine that the settings name; "auto" is the best one there is here.

    Raises:
        RuntimeError: it is not available; the message says what is.
    """
    if settings.engine == "vllm":
        raise RuntimeError(
            "engine=vllm: this version of Guerdon samples with transformers only; use engine=transformers"
        )
    from guerdon_services.rollout.engines.transformers import TransformersEngine

    return TransformersEngine(settings)
