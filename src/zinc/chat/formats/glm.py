"""GLM 4.5 and later: calls have a name and pairs of key and value, inside <tool_call>.

    <tool_call>name
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

Strings are written as plain text and other values as JSON. The tool's schema decides if a value can
be either.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.tagged import Arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps
from zinc.core.dataclass import dataclass


@dataclass(frozen=True)
class PairTags:
    """The tags of a call with pairs of key and value; `suffix` ends the name of each tag.

    name_end: the tag after the name of the tool; without one, the next tag ends the name.
    """

    suffix: str = ""
    name_end: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        """The tags of a call, its key and its value, each with its closing tag."""
        names = ("tool_call", "arg_key", "arg_value")
        return tuple(f"<{end}{name}{self.suffix}>" for name in names for end in ("", "/"))

    def read(self, reader: Reader, output: Output) -> Steps[None]:
        """Read a call, after its opening tag."""
        _, close, key_tag, key_end, value, value_end = self.all

        def next_tag() -> Steps[str]:
            for tag in (key_tag, close):
                if (yield from reader.match_after_space(tag)):
                    return tag
            return ""

        ends = (self.name_end,) if self.name_end else (key_tag, close)
        name, marker = yield from reader.until(*ends)
        name = name.strip()
        if self.name_end:
            marker = yield from next_tag()
        if marker == close and not output.knows(name):
            raise MalformedError(name)
        output.start(name)
        arguments = Arguments(output, name)
        while marker == key_tag:
            key = (yield from reader.until(key_end))[0].strip()
            if not (yield from reader.match_after_space(value)):
                raise MalformedError(key)
            yield from arguments.read(reader, key, value_end, (key_tag, close))
            marker = yield from next_tag()
        if marker != close:
            raise MalformedError(name)
        arguments.close()
        output.end()


_TAGS = PairTags()

GLM = ChatFormat(
    name="glm",
    markers=(*_TAGS.all, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_TAGS.all[0]: _TAGS.read},
)
