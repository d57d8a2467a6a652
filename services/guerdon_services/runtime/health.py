"""What the process says of itself to those who decide whether to send it work."""

from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "ready", "draining"]
QueueState = Literal["off", "connecting", "connected", "stopped"]


@dataclass(frozen=True)
class Health:
    """The life of the process, and whether its queue worker reaches Redis (a detail: it does not decide readiness).

    `stuck` is a sentence when a batch hangs: the process is of no use any more.
    """

    state: State
    queue: QueueState
    stuck: str | None = None

    @property
    def ready(self) -> bool:
        """Whether new work is admitted."""
        return self.state == "ready" and self.stuck is None

    def as_dict(self) -> dict[str, str]:
        """The body of /readyz."""
        return {"status": "stuck" if self.stuck else self.state, "queue": self.queue}
