"""Python, run by the fork server's own warm interpreter."""

from guerdon_services.code.languages.language import Language

LANGUAGE = Language(name="python", aliases=frozenset({"python3", "py", "py3"}))
