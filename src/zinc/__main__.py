"""The program `zinc`, also as `python -m zinc`.

Nothing is imported before `main` runs, so that Ctrl-C during the imports ends the program quietly.
"""

import sys

_INTERRUPTED = 130


def main() -> int:
    """Run the command line of this process and return its exit status."""
    try:
        import os
        import signal

        # A shell ignores SIGINT for jobs with `&`.
        is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_handled:
            # An exception could be lost: Python ignores those in callbacks of the import system.
            signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
        from zinc.cli.main import main as run

        if is_handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
