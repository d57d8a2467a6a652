"""From the words of a command line to a service and its runtime settings, or a sentence saying why not."""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from guerdon import tracing
from guerdon_services.runtime import logs, process
from guerdon_services.runtime.scorer import AnyService, ScorerSettings
from guerdon_services.runtime.settings import RuntimeSettings, parse_address
from guerdon_services.runtime.validation import field_errors

GROUP = "guerdon.services"
DEFAULT_HTTP = "127.0.0.1:8101"
DEFAULT_GRPC = "127.0.0.1:9101"

SettingsT = TypeVar("SettingsT", bound=ScorerSettings)


class Refused(Exception):
    """The command line asks for something that cannot be; the message is a sentence for people."""


def runtime_settings(options: Mapping[str, Any]) -> RuntimeSettings:
    """Settings from command-line options; without any door, HTTP and gRPC on loopback.

    Raises:
        Refused: an address, a limit, or a door beyond loopback without a token.
    """
    values = {key: value for key, value in options.items() if value is not None}
    if not any(door in values for door in ("http", "grpc", "queue")):
        values |= {"http": DEFAULT_HTTP, "grpc": DEFAULT_GRPC}
    try:
        for door in ("http", "grpc"):
            if door in values:
                values[door] = parse_address(values[door])
        return RuntimeSettings.model_validate(values)
    except ValidationError as error:
        reasons = [str(one) for one in field_errors(RuntimeSettings, error)]
        raise Refused("; ".join(reasons)) from None
    except ValueError as error:
        raise Refused(str(error)) from None


def make_service(name: str, assignments: Sequence[str]) -> AnyService:
    """The service called `name` with settings from `key=value` words; nothing is opened yet.

    Raises:
        Refused: an unknown service or setting, a wrong value, or missing packages.
    """
    service_type = _load(name)
    return service_type(service_settings(service_type.settings_type, assignments))


def service_settings(settings_type: type[SettingsT], assignments: Sequence[str]) -> SettingsT:
    """Settings from `key=value` words. Values are YAML, except where the setting is text.

    Raises:
        Refused: a word that is no assignment, an unknown key (with the one probably meant), a wrong value.
    """
    texts: dict[str, str] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise Refused(f"a setting looks like key=value, not {word!r}")
        texts[key] = text
    values = {key: _yaml(text) for key, text in texts.items()}
    try:
        return settings_type.model_validate(values)
    except ValidationError as error:
        wanted = {str(one["loc"][0]) for one in error.errors() if one["type"] == "string_type"}
    try:
        # `model=007` means the text, whatever YAML makes of it.
        return settings_type.model_validate({**values, **{key: texts[key] for key in wanted if key in texts}})
    except ValidationError as error:
        reasons = [
            str(one).replace("unknown field", "no such setting") for one in field_errors(settings_type, error)
        ]
        raise Refused("; ".join(reasons)) from None


def run(service: AnyService, settings: RuntimeSettings) -> int:
    """Serve until a signal; the exit code."""
    logs.configure(settings.log_format, settings.log_level, service.name)
    tracing.export_spans(f"guerdon-{service.name}")
    return process.run(service, settings)


def _load(name: str) -> type[AnyService]:
    known = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
    entry_point = known.get(name)
    if entry_point is None:
        raise Refused(f"unknown service {name!r}; known: {', '.join(sorted(known))}")
    try:
        return entry_point.load()
    except ImportError as error:
        raise Refused(f"service {name} cannot be loaded ({error}): {_remedy(entry_point)}") from error


def _remedy(entry_point: EntryPoint) -> str:
    distribution = entry_point.dist.name if entry_point.dist else "guerdon-services"
    extra = entry_point.name.replace("_", "-")
    return f"pip install '{distribution}[{extra}]'"


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
