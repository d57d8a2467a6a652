"""What a training run asks of the services: discrete events, no service needed. python benchmarks/simulate.py --help

A step goes as the trainer's does: groups are asked, each one entry of the rollout queue; when its responses are there,
one verifier after the other is asked for each of them; when enough groups are there, the batch is scored by process
reward replicas and learned by their learner, then the trainer learns and publishes. With ahead=1 the next step's groups
are asked with this one's and sampled while it learns; nothing is asked while it does. A request passes the trainer's
client (one process), a Redis, a worker, the Redis again and the client again. Times are parameters; the defaults are
what the benchmarks of this repository measured, where they could (docs/scale.md says which).
"""

import argparse

from simulation.run import Run, figures
from simulation.setup import PRESETS, changed


def main() -> None:
    """Print the figures of one setup, or a line for each value of a sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="key=value")
    parser.add_argument("--preset", choices=PRESETS, default="pod")
    parser.add_argument("--sweep", metavar="key=v1,v2,...", help="one line for each value")
    arguments = parser.parse_args()
    setup = changed(PRESETS[arguments.preset], arguments.changes)
    key, _, values = (arguments.sweep or "").partition("=")
    for value in values.split(","):
        found = figures(Run(changed(setup, [f"{key}={value}"] if key else [])).go())
        full = max((name for name in found.use if name != "trainer"), key=lambda name: found.use[name])
        print(
            f"{f'{key}={value}: ' if key else ''}step {found.step_s:.0f} s, {found.rollouts_min:,.0f} rollouts/min, "
            f"{found.requests_s:,.0f} requests/s, trainer idle {found.trainer_idle:.0%}, "
            f"Redis peak {found.peak_bytes / 2**20:,.0f} MiB, largest value {found.largest_bytes / 2**20:,.1f} MiB, "
            f"fullest: {full} {found.use[full]:.0%}"
        )
        if not key:
            print(f"{'station':16} {'in use':>8} {'p99 wait s':>11} {'most entries':>13}")
            for name, use in found.use.items():
                print(f"{name:16} {use:8.1%} {found.p99_s[name]:11.3f} {found.entries.get(name, ''):>13}")


if __name__ == "__main__":
    main()
