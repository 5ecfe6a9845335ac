"""Chat formats, one file each, and the table that finds a model's format.

A model's chat template shows the markers that the model was trained on, so its source decides. The
rows are tried in order: templates of one format may mention the markers of a simpler one.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.deepseek import DEEPSEEK, DEEPSEEK_V31
from zinc.chat.formats.gemma3 import GEMMA3
from zinc.chat.formats.gemma4 import GEMMA4
from zinc.chat.formats.glm import GLM
from zinc.chat.formats.harmony import HARMONY
from zinc.chat.formats.hermes import HERMES, THINK
from zinc.chat.formats.llama import LLAMA
from zinc.chat.formats.mistral import MISTRAL
from zinc.chat.formats.qwen import QWEN_TAGS

# Formats without calls that zinc can read.
THINKING_ONLY = ChatFormat("thinking-only", markers=(THINK.begin, THINK.end), thinking=THINK)
PLAIN = ChatFormat("plain")

# A format is that of a template which has all the texts of one of its rows.
_DETECT: tuple[tuple[ChatFormat, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>", "analysis")),
    (GEMMA4, ("<|tool_call>", "<|turn>")),
    (DEEPSEEK, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json")),
    (DEEPSEEK_V31, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (GLM, ("<tool_call>", "<arg_key>")),
    (QWEN_TAGS, ("<tool_call>", "<function=", "<parameter=")),
    (HERMES, ("<tool_call>", "</tool_call>", '"arguments"')),
    (LLAMA, ("<|python_tag|>",)),
    (LLAMA, ("<|start_header_id|>", '{"name": function name, "parameters"')),
    (GEMMA3, ("<start_of_turn>",)),
    (THINKING_ONLY, ("<think>",)),
    (THINKING_ONLY, ("</think>",)),
)

FORMATS: tuple[ChatFormat, ...] = tuple(
    {format.name: format for format in (*(row[0] for row in _DETECT), PLAIN)}.values()
)


def detect(template_source: str) -> ChatFormat:
    """The format of a model by the source of its chat template.

    `plain` when the template shows no markers that zinc knows: calls then stay text.
    """
    for format, texts in _DETECT:
        if all(text in template_source for text in texts):
            return format
    return PLAIN


__all__ = ["FORMATS", "PLAIN", "THINKING_ONLY", "detect"]
