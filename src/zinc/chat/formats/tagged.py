"""Readers of arguments between tags: <parameter=key>value</parameter>.

A value is raw text and can contain anything, even its closing tag. A closing tag therefore counts
only if it is followed by one of the tags that can come next.
"""

from __future__ import annotations

from zinc.chat.json_text import escaped, quoted
from zinc.chat.output import Output
from zinc.chat.reader import END, MalformedError, Reader, Sink, Steps
from zinc.chat.schema import typed


class Arguments:
    """The JSON object of an open call's arguments, written one argument after another."""

    def __init__(self, output: Output, tool: str) -> None:
        self._output = output
        self._tool = tool
        self._separator = "{"

    def key(self, key: str) -> None:
        """Write the key of the next argument."""
        self._output.arguments(f"{self._separator}{quoted(key)}: ")
        self._separator = ", "

    def close(self) -> None:
        """Write the end of the object."""
        self._output.arguments("{}" if self._separator == "{" else "}")
        self._output.end_arguments()

    def read(
        self, reader: Reader, key: str, close: str, after: tuple[str, ...], lines: bool = False
    ) -> Steps[None]:
        """Read the value of `key` up to the tag `close`, which must be followed by one of `after`.

        lines: the line breaks after the opening and before the closing tag do not belong to the
        value. A string is passed on while it is read, other values at their end.
        """
        tools, write = self._output.tools, self._output.arguments
        types = tools.types(self._tool, key) if tools is not None else frozenset()
        self.key(key)
        if types == {"string"}:
            write('"')
            yield from _read_raw(reader, close, after, lines, lambda text: write(escaped(text)))
            write('"')
        else:
            parts: list[str] = []
            yield from _read_raw(reader, close, after, lines, parts.append)
            write(typed("".join(parts), types))


def _read_raw(
    reader: Reader, close: str, after: tuple[str, ...], lines: bool, sink: Sink
) -> Steps[None]:
    if lines:
        yield from reader.match("\n")
    closing = reader.markers([close])
    held = ""

    def pass_on(text: str) -> None:
        nonlocal held
        if held:
            sink(held)
        held = text if lines and text == "\n" else ""
        if not held:
            sink(text)

    while True:
        if (yield from reader.scan(closing, pass_on)) == END:
            raise MalformedError("cut off")
        start = reader.position
        item = yield from reader.peek()
        ended = item == END
        for tag in after:
            position = reader.position
            if (yield from reader.match(tag)):
                ended = True
                reader.rewind(position)
                break
        if ended:
            return
        reader.rewind(start)
        pass_on(close)
