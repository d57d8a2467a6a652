"""`guerdon serve NAME`: start one service. Heavy imports wait until they are needed."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

_DOORS = "Without --http, --grpc and --queue: 127.0.0.1:8101 and 127.0.0.1:9101."

Name = Annotated[str, typer.Argument(help="Which service: math, code, rules, process_reward ...")]
Assignments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the service; values are YAML scalars."),
]
Http = Annotated[str | None, typer.Option(help=f"HOST:PORT of the HTTP door; port 0 picks one. {_DOORS}")]
Grpc = Annotated[str | None, typer.Option(help="HOST:PORT of the gRPC door.")]
Queue = Annotated[
    str | None, typer.Option(envvar="GUERDON_QUEUE_URL", help="URL of the Redis to take work from.")
]
QueueName = Annotated[str | None, typer.Option(help="Name of the queue; the service's by default.")]
TokenFile = Annotated[Path | None, typer.Option(help="File with the bearer token; GUERDON_TOKEN otherwise.")]
TlsCert = Annotated[Path | None, typer.Option(help="PEM file with the certificate chain.")]
TlsKey = Annotated[Path | None, typer.Option(help="PEM file with the private key.")]
MaxPending = Annotated[int, typer.Option(help="Items that may wait before requests are refused with 429.")]
MaxItems = Annotated[int, typer.Option(help="Items that one request may hold.")]
MaxBody = Annotated[int, typer.Option(help="Largest request body, in bytes.")]
Patience = Annotated[
    float, typer.Option(help="Seconds that an HTTP client may take to send headers, or a body under 1 KB/s.")
]
DrainS = Annotated[float, typer.Option(help="Seconds that in-flight work gets after SIGTERM.")]
DrainDelayS = Annotated[float, typer.Option(help="Seconds that work is still taken after SIGTERM.")]
LeaseS = Annotated[
    float, typer.Option(help="Seconds after which a dead worker's queue entries are taken over.")
]
MaxDeliveries = Annotated[int, typer.Option(help="Deliveries after which a queue entry is a dead letter.")]
StuckAfterS = Annotated[
    float, typer.Option(help="Seconds without a sign of life after which a batch counts as stuck; 0: never.")
]
ExitWhenStuck = Annotated[
    bool, typer.Option("--exit-when-stuck", help="End the process when a batch or the event loop is stuck.")
]
SlowS = Annotated[
    float, typer.Option(help="Seconds of execution after which a batch's items are logged as slow; 0: never.")
]
ReadyFile = Annotated[Path | None, typer.Option(help="JSON file to write once the doors listen: http, grpc.")]
LogFormat = Annotated[str, typer.Option(help="auto (JSON unless on a terminal), json or console.")]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


def serve(
    name: Name,
    assignments: Assignments = None,
    http: Http = None,
    grpc: Grpc = None,
    queue: Queue = None,
    queue_name: QueueName = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    max_pending: MaxPending = 16_384,
    max_request_items: MaxItems = 10_000,
    max_body_bytes: MaxBody = 32 * 1024 * 1024,
    client_patience_s: Patience = 30.0,
    drain_s: DrainS = 30.0,
    drain_delay_s: DrainDelayS = 0.0,
    lease_s: LeaseS = 30.0,
    max_deliveries: MaxDeliveries = 5,
    stuck_after_s: StuckAfterS = 900.0,
    exit_when_stuck: ExitWhenStuck = False,
    slow_s: SlowS = 30.0,
    ready_file: ReadyFile = None,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Serve a scorer, learner or generator over HTTP, gRPC and a Redis queue until SIGTERM."""
    options = {
        key: value for key, value in locals().items() if key not in ("name", "assignments", "token_file")
    }
    _open_streams()
    from guerdon_services.runtime import launch

    try:
        # Never an option: every user of the machine can read command lines.
        options["token"] = (
            token_file.read_text().strip() if token_file else os.environ.get("GUERDON_TOKEN") or None
        )
        settings = launch.runtime_settings(options)
        service = launch.make_service(name, assignments or [])
    except (launch.Refused, OSError) as error:
        typer.echo(f"guerdon serve: {error}", err=True)
        raise typer.Exit(2) from None
    except UnicodeDecodeError:
        typer.echo(f"guerdon serve: {token_file} is no text, so it cannot be a token", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(launch.run(service, settings))


def _open_streams() -> None:
    """Replace standard streams that were closed before the start: no socket may get their numbers, and no log lines."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the process lives)
