"""What the process says of itself to those who decide whether to send it work."""

from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "ready", "draining"]
QueueState = Literal["off", "connecting", "connected", "stopped"]


@dataclass(frozen=True)
class Health:
    """The life of the process, and whether its queue worker reaches Redis (a detail: it does not decide readiness)."""

    state: State
    queue: QueueState

    @property
    def ready(self) -> bool:
        """Whether new work is admitted."""
        return self.state == "ready"

    def as_dict(self) -> dict[str, str]:
        """The body of /readyz."""
        return {"status": self.state, "queue": self.queue}
