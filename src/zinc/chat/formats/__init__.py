"""Chat formats, one file each, and the detection of a model's format.

The format is detected by the markers in the source of the model's chat template. The rows of the
table are tried in order, because a template may also contain markers of a simpler format.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.command import COMMAND
from zinc.chat.formats.command_r import COMMAND_R
from zinc.chat.formats.deepseek import DEEPSEEK, DEEPSEEK_V31
from zinc.chat.formats.gemma3 import GEMMA3
from zinc.chat.formats.gemma4 import GEMMA4
from zinc.chat.formats.glm import GLM
from zinc.chat.formats.granite import GRANITE
from zinc.chat.formats.harmony import HARMONY
from zinc.chat.formats.hermes import HERMES, THINK
from zinc.chat.formats.hy3 import HY3
from zinc.chat.formats.lfm2 import LFM2
from zinc.chat.formats.llama import LLAMA
from zinc.chat.formats.minicpm import MINICPM
from zinc.chat.formats.minimax import MINIMAX
from zinc.chat.formats.mistral import MISTRAL
from zinc.chat.formats.qwen import QWEN_TAGS, SEED

# Formats without calls that zinc can read.
THINKING_ONLY = ChatFormat("thinking-only", markers=(THINK.begin, THINK.end), thinking=THINK)
PLAIN = ChatFormat("plain")

# A template has a format if it contains all texts of one of the format's rows.
_DETECT: tuple[tuple[ChatFormat, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>", "analysis")),
    (GEMMA4, ("<|tool_call>", "<|turn>")),
    (DEEPSEEK, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json")),
    (DEEPSEEK_V31, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (COMMAND, ("<|START_ACTION|>", '"tool_name"')),
    (COMMAND_R, ("<|START_OF_TURN_TOKEN|>", "Action:", '"tool_name"')),
    (HY3, ("<tool_calls{}>", "<arg_key{}>", ":opensource")),
    (GLM, ("<tool_call>", "<arg_key>")),
    (SEED, ("<seed:tool_call>", "<function=", "<parameter=")),
    (MINIMAX, ("<minimax:tool_call>", "<invoke name=", "<parameter name=")),
    (MINICPM, ('<function name="', '<param name="')),
    (GRANITE, ("<|tool_call|>", "<|start_of_role|>")),
    (QWEN_TAGS, ("<tool_call>", "<function=", "<parameter=")),
    (HERMES, ("<tool_call>", "</tool_call>", '"arguments"')),
    (LFM2, ("<|tool_list_start|>",)),
    (LFM2, ("List of tools: [", "<|im_start|>")),
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
    """Return the chat format of a model, given the source of its chat template.

    `PLAIN`, which treats everything as text, if the template has no markers that zinc knows.
    """
    for format, texts in _DETECT:
        if all(text in template_source for text in texts):
            return format
    return PLAIN


__all__ = ["FORMATS", "PLAIN", "THINKING_ONLY", "detect"]
