"""`zinc run`: one prompt, one answer. Only the answer goes to stdout, while it grows."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from zinc.cli import argtypes, early, parsed, prompt, usage
from zinc.cli.argtypes import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    prompt.add_arguments(parser)
    usage.add_model_option(parser)
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--raw", action="store_true", help="continue PROMPT as plain text, without a chat template"
    )
    parser.add_argument(
        "--special",
        action="store_true",
        help="with --raw: parse control tokens such as <|im_end|> in PROMPT",
    )
    usage.add_think(parser)
    usage.add_chat_template(parser)
    parser.add_argument("--stats", action="store_true", help="print tokens/s to stderr")
    usage.add_sampling(parser)
    usage.add_backend(parser)
    usage.add_cache(parser)
    usage.add_speculate(parser)
    usage.add_lora(parser)


def run(args: argparse.Namespace) -> int:
    if args.raw and (args.system, args.think, args.chat_template) != (None, None, None):
        what = "--system, --think and --chat-template have no effect"
        raise UsageError(f"--raw uses no chat template, so {what}")
    if args.special and not args.raw:
        raise UsageError("--special needs --raw: in a chat, control tokens come from the template")
    given = prompt.read(args)
    messages: list[dict[str, Any]] = [{"role": "user", "content": given}]
    if args.system is not None:
        system = argtypes.text_argument(args.system, "the system prompt")
        messages.insert(0, {"role": "system", "content": system})

    early.open_gpu(args)
    from zinc.cli import answer, loading
    from zinc.core.terminal import is_plain

    loading.sampling_params(args)  # reports values out of range before the model is loaded
    with loading.open_llm(args) as llm:
        params = loading.sampling_params(args, llm)
        template_args = parsed.template_arguments(args)
        # Reasoning is shown on a terminal, or if it was asked for.
        watched = args.think or not is_plain(sys.stderr)
        printer = answer.Printer(sys.stdout, sys.stderr if watched else None)
        if args.raw:
            ids = llm.tokenizer.encode(given, parse_special=args.special)
            chunks, parser = llm.stream(ids, params), None
        else:
            answer.note_think(llm.template, args.think)
            chunks = llm.stream(llm.render(messages, **template_args), params)
            rendered = llm.template.render(llm.settings.conversation(messages), **template_args)
            parser = answer.parser_for(llm.template, rendered)
        result = answer.show(chunks, printer, parser)
        if result.fills(llm.context):
            hint = " Choose a larger --context." if args.context else ""
            full = f"the context of {llm.context:,} tokens is full"
            print(f"zinc: the answer is cut off: {full}.{hint}", file=sys.stderr)
    if args.stats:
        answer.report(result.timings)
    return 0
