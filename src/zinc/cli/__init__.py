"""The command line, with one file for each command.

A command module has `add_arguments(parser)` and `run(args) -> exit status`. It imports the engine
inside `run`, so that help and usage errors never wait for numpy. `main` holds the table of
commands, and turns errors into a line on stderr and an exit status.
"""
