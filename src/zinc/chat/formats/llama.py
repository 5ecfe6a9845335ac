"""Llama 3.1 to 3.3: a bare JSON object with `name` and `parameters`, or code after <|python_tag|>.

The tag is followed by JSON, a call of a built-in tool such as brave_search.call(query="..."), or
the code for a tool named `python` or `code_interpreter`. Bare JSON is a call only at the beginning
of an answer, and only with the name of a tool. Llama 3.2 also writes [f(a=1)].
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.json_call import read_arguments, read_json_call
from zinc.chat.formats.python_call import read_call_list, read_python_call, read_word
from zinc.chat.json_text import escaped
from zinc.chat.output import Output
from zinc.chat.reader import END, MalformedError, Reader, Steps

_TAG = "<|python_tag|>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_INTERPRETERS = ("python", "code_interpreter", "ipython")


def _read_objects(reader: Reader, output: Output, known: bool) -> Steps[None]:
    """Read one or more calls as JSON objects, with optional semicolons between them."""
    while True:
        yield from read_json_call(reader, output, known)
        output.end()
        start = reader.position
        if not (yield from reader.match_after_space(";")):
            yield from reader.match_after_space(",")
        if (yield from reader.peek()) != "{":
            reader.rewind(start)
            return


def _read_bare(reader: Reader, output: Output) -> Steps[None]:
    if (yield from reader.peek()) == "[":
        yield from read_call_list(reader, output)
    else:
        yield from _read_objects(reader, output, known=True)


def _read_tagged(reader: Reader, output: Output) -> Steps[None]:
    item = yield from reader.peek()
    if item == "{":
        yield from _read_objects(reader, output, known=False)
        return
    start = reader.position
    name = yield from read_word(reader)
    if output.knows(name) and (yield from reader.match(".call(")):
        yield from read_python_call(reader, output, name)
        output.end()
        return
    reader.rewind(start)
    yield from _read_code(reader, output)


def _read_code(reader: Reader, output: Output) -> Steps[None]:
    tool = next((name for name in _INTERPRETERS if output.knows(name)), None)
    if tool is None or output.tools is None:
        raise MalformedError("code, and no tool that runs it")
    key = next(iter(output.tools.parameters(tool)), "code")
    output.start(tool)
    output.arguments(f'{{"{escaped(key)}": "')
    while (item := (yield from reader.read())) != END:
        output.arguments(escaped(str(item)))
    output.arguments('"}')
    output.end_arguments()
    output.end()


def _read_function(reader: Reader, output: Output) -> Steps[None]:
    name = (yield from reader.until(">"))[0].strip()
    if not output.knows(name):
        raise MalformedError(name)
    yield from read_arguments(reader, output, name)
    yield from reader.match_after_space(_FUNCTION_END)
    output.end()


LLAMA = ChatFormat(
    name="llama",
    markers=(_TAG, _FUNCTION, _FUNCTION_END),
    calls={_TAG: _read_tagged, _FUNCTION: _read_function},
    bare_call=_read_bare,
)
