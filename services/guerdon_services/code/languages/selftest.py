"""Proves at start that the walls around compilers and compiled programs stand, language by language."""

from guerdon.types import TestVerdict
from guerdon_services.code.languages import LANGUAGES, native
from guerdon_services.code.languages.language import Language, Missing, Toolchain
from guerdon_services.code.sandbox import Profile
from guerdon_services.code.selftest import NotIsolated
from guerdon_services.code.supervision import Infrastructure, RunLimits
from guerdon_services.code.worker import Worker

_BUILD = RunLimits(cpu_s=20.0, wall_s=60.0, memory_mb=1024, output_bytes=1 << 20)
_RUN = RunLimits(cpu_s=5.0, wall_s=30.0, memory_mb=256, output_bytes=1 << 20)


def check(worker: Worker, language: Language, toolchain: Toolchain, profile: Profile) -> None:
    """Build and run the language's probes.

    Raises:
        NotIsolated: a wall gives way.
        Missing: a harmless program does not work, so that the language cannot be offered.
    """
    probe = language.probe
    if probe is None:
        raise Missing("no self-test")
    try:
        for source in probe.unbuildable:
            if not isinstance(native.build(worker, language, toolchain, source, _BUILD), TestVerdict):
                raise NotIsolated(f"{language.name}: the compiler got through: {source!r}")
        printed = _output(worker, language, toolchain, probe.harmless)
        if printed != "6\n":
            raise Missing(f"a harmless program could not run: {printed!r}")
        printed = _output(worker, language, toolchain, probe.hostile)
    except Infrastructure as error:
        raise Missing(f"the self-test could not run: {error}") from None
    lines = printed.splitlines()
    if profile == "gvisor":  # has no Landlock
        lines = [line for line in lines if not line.startswith("landlock:")]
    if lines != ["end"]:
        raise NotIsolated(f"{language.name}: a program got through: {lines}")


def check_all(worker: Worker, toolchains: dict[str, Toolchain], profile: Profile) -> dict[str, str]:
    """Check every language; returns why those that do not work cannot be offered.

    Raises:
        NotIsolated: a wall gives way.
    """
    faults: dict[str, str] = {}
    for name, toolchain in toolchains.items():
        try:
            check(worker, LANGUAGES[name], toolchain, profile)
        except Missing as error:
            faults[name] = str(error)
    return faults


def _output(worker: Worker, language: Language, toolchain: Toolchain, source: str) -> str:
    built = native.build(worker, language, toolchain, source, _BUILD)
    if isinstance(built, TestVerdict):
        return built.message or built.verdict
    try:
        run, failure = native.run(worker, built, b"1 2 3\n", _RUN)
    finally:
        built.close()
    if failure is not None:
        return f"{failure.verdict}: {failure.message}"
    return run.stdout.decode("utf-8", "replace")
