"""Forks services on command (`tests/nurseries.py`): processes of their own, with torch imported once for all."""

import os
from typing import Any, NoReturn

# What the services import when they open a model.
import transformers.models.llama.modeling_llama  # noqa: F401

import guerdon_services.process_reward.replica
import guerdon_services.process_reward.service
import guerdon_services.rollout.engines.transformers
import guerdon_services.rollout.service  # noqa: F401
from guerdon_services.runtime import launch
from tests.nurseries import become_a_service, obey


def serve(spec: dict[str, Any]) -> NoReturn:
    """A service, by its `name`, the `words` with its settings, `options` of its runtime, and its `log`."""
    log = os.open(spec["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    become_a_service(output=log, errors=log)
    # Weights from a URL belong to the test, as the log does.
    os.environ["GUERDON_CACHE_DIR"] = f"{os.path.dirname(spec['log'])}/cache"
    service = launch.make_service(spec["name"], spec["words"])
    os._exit(launch.run(service, launch.runtime_settings(spec["options"])))


if __name__ == "__main__":
    obey(serve)
