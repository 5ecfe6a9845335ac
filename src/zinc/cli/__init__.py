"""The command line, one file a command.

A command module has `add_arguments(parser)` and `run(args) -> exit status`. It imports what it
needs of the engine inside `run`, so that help and usage errors never wait for numpy. `main` holds
the table of commands and the one place where errors become a line on stderr and an exit status.
"""
