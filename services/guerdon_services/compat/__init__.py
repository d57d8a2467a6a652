"""Other systems' wire formats as extra routes of a service, so that they can be pointed at it as it stands.

    POST /get_reward                    OpenRLHF's remote reward
    POST /rm                            slime's remote_rm: a bare number
    POST /verify, /seed_session         NeMo Gym's resources server
    POST /submit_task, GET /task_result ROLL's reward system
    POST /run_code                      SandboxFusion (the code service)

A sample without a value never gets one here: the request fails with the status of `guerdon.types.Status`, or, where
the format has fields for it, says that there is none.
"""

from fastapi import APIRouter

from guerdon_services.compat import nemo_gym, openrlhf, roll, slime
from guerdon_services.runtime.dispatch import Dispatcher


def routers(dispatch: Dispatcher) -> list[APIRouter]:
    """The routes of a service that scores; none for others."""
    if "score" not in dispatch.operations:
        return []
    return [format.build_router(dispatch) for format in (openrlhf, slime, nemo_gym, roll)]
