"""`zinc chat`: a conversation in the terminal, with line editing and history.

Ctrl-C stops the answer and keeps its text so far; Ctrl-D or /exit leaves. Input from a pipe or a
file is read line by line without prompts, so a script can drive it.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from zinc.cli import argtypes, early, parsed, usage
from zinc.cli.interrupt import Interrupt
from zinc.cli.lineinput import LineInput
from zinc.cli.window import Message, Window, system_message
from zinc.core.errors import RequestError, ZincError, next_step
from zinc.core.terminal import is_plain

if TYPE_CHECKING:
    from zinc.engine.sampling import SamplingParams
    from zinc.llm import LLM

HELP = """\
/help             this text
/clear            forget the conversation; the system prompt stays
/system [TEXT]    show or set the system prompt, and forget the conversation
/save FILE        write the conversation to FILE: JSON if it ends in .json, else text
/exit             exit, like Ctrl-D
A pasted block is one message. \"\"\" opens and closes a message of several lines, and a line that
ends in \\ continues in the next one. Ctrl-C stops an answer. When the context is full, the oldest
turns are dropped, and a note says how many."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    usage.add_think(parser)
    usage.add_chat_template(parser)
    parser.add_argument("--stats", action="store_true", help="print tokens/s after each answer")
    usage.add_sampling(parser)
    usage.add_backend(parser)
    usage.add_cache(parser)
    usage.add_speculate(parser)
    usage.add_lora(parser)


def run(args: argparse.Namespace) -> int:
    system = args.system and argtypes.text_argument(args.system, "the system prompt")

    early.open_gpu(args)
    from zinc.cli import answer, loading

    loading.sampling_params(args)  # reports values out of range before the model is loaded
    with loading.open_llm(args) as llm, LineInput() as lines:
        params = loading.sampling_params(args, llm)
        answer.note_think(llm.template, args.think)  # raises when there is no template
        template_args = parsed.template_arguments(args)
        system = llm.settings.system if system is None else system
        chat = Chat(llm, params, template_args, system=system, stats=args.stats)
        if lines.interactive:
            print("Type a message. /help lists the commands, Ctrl-D exits.")
        while (line := lines.read()) is not None:
            if not chat.take(line):
                break
    return 0


class Chat:
    """A conversation in the terminal, and the commands that change it."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        template_args: dict[str, Any],
        *,
        system: str = "",
        stats: bool = False,
    ) -> None:
        self._llm, self._params = llm, params
        self._template_args, self._stats = template_args, stats
        self._restart(system)

    def take(self, line: str) -> bool:
        """Run a command or answer a message; return False when the user leaves."""
        # A pasted block may begin with a /; the only command that takes several lines is /system.
        is_command = line.startswith("/") and ("\n" not in line or line.startswith("/system "))
        try:
            if is_command:
                return self._command(*line.partition(" ")[::2])
            if line.strip():
                self.say(argtypes.text_argument(line, "the message"))
        except ZincError as error:
            print(f"zinc: {error.in_options()}", file=sys.stderr)
        return True

    def say(self, message: str) -> None:
        """Add a user turn and stream the answer. If that fails, the turn is removed again."""
        from zinc.cli import answer

        turn = {"role": "user", "content": message}
        sent, ids = self._window.fit(self.system, [*self._turns, turn])
        prompt = self._llm.template.render(sent, **self._template_args)
        # Only a terminal can show reasoning apart from the answer, as dim text.
        printer = answer.Printer(sys.stdout, None if is_plain(sys.stdout) else sys.stdout)
        try:
            with Interrupt() as interrupt:
                chunks = self._llm.stream(ids, self._params)
                parser = answer.parser_for(self._llm.template, prompt)
                result = answer.show(chunks, printer, parser, interrupt.requested)
        except KeyboardInterrupt:  # pressed twice
            print("(stopped; the message was removed from the conversation)", file=sys.stderr)
            return
        if interrupt.requested():
            print("(stopped)", file=sys.stderr)
        elif result.fills(self._llm.context):
            print("(stopped: the context is full)", file=sys.stderr)
        if result.text or not interrupt.requested():
            self._turns += [turn, {"role": "assistant", "content": result.text}]
        if self._stats:
            answer.report(result.timings)

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, including turns that the context does not hold."""
        return [*system_message(self.system), *self._turns]

    def _restart(self, system: str) -> None:
        self.system = system
        self._turns: list[Message] = []
        self._window = Window(self._llm, self._params, self._template_args)

    def _command(self, name: str, argument: str) -> bool:
        argument = argument.strip()
        match name:
            case "/help" | "/?":
                print(HELP)
            case "/clear":
                self._restart(self.system)
            case "/system" if argument:
                self._restart(argtypes.text_argument(argument, "the system prompt"))
            case "/system":
                print(self.system or "There is no system prompt.")
            case "/save" if argument:
                save(argument, self.messages)
                print(f"Saved to {argument}.")
            case "/save":
                raise RequestError("/save needs a file", "", "write /save FILE")
            case "/exit" | "/quit" | "/bye":  # words of other programs
                return False
            case _:
                hint = "/help lists them; a blank before the / makes it a message"
                raise RequestError(f"{name} is not a command", "", hint)
        return True


def save(path: str, messages: list[dict[str, str]]) -> None:
    """Write a conversation to a file. Raises RequestError when that fails."""
    if path.endswith(".json"):
        import json

        text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
    else:
        text = "\n".join(f"{m['role']}: {m['content']}\n" for m in messages)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        why = error.strerror or str(error)
        raise RequestError(f"cannot write {path}", why, next_step(error)) from error
