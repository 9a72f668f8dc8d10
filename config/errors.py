"""Errors meant for the person at the keyboard: one clear line, never a traceback."""

import errno
import sys
from collections.abc import Callable

# What the disk refuses, and the user can mend, wherever it comes up.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class UserError(Exception):
    """A mistake that its message explains: what was found, what was expected, what to do."""


def run_main(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and exit with its status; a UserError, or a disk that is full or can't be written, is one
    line on stderr and status 1."""
    try:
        status = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno not in DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror}; mend that and run it again: nothing is lost", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(status or 0)
