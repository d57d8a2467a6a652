"""The languages of programs. A module in `known` that defines `LANGUAGE` is one; nothing else need change."""

import importlib
import pkgutil

from guerdon_services.code.languages import known
from guerdon_services.code.languages.language import Language

#: By name, in alphabetical order.
LANGUAGES: dict[str, Language] = {
    module.name: importlib.import_module(f"{known.__name__}.{module.name}").LANGUAGE
    for module in pkgutil.iter_modules(known.__path__)
}


def named(name: str) -> Language:
    """The language of that name or alias, in any case.

    Raises:
        KeyError: there is none; the message lists those there are.
    """
    for language in LANGUAGES.values():
        if name.strip().lower() in language.names:
            return language
    raise KeyError(f"{name!r} is not one of {', '.join(LANGUAGES)}")
