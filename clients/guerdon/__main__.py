"""`python -m guerdon` is the `guerdon` command."""

from guerdon.cli import app

app(prog_name="guerdon")
