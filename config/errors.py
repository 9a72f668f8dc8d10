"""Errors meant for the person at the keyboard: one clear line, never a traceback."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """A mistake that its message explains: what was found, what was expected, what to do."""


def run_main(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and exit with its status; a UserError is one line on stderr and status 1."""
    try:
        status = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(status or 0)
