"""JSON Schema as a grammar: every keyword is followed exactly, or the schema is refused.

    document.py    finds subschemas, $id, anchors; resolves $ref
    values.py      the set of JSON values a schema allows, per JSON type
    evaluate.py    keywords -> values
    grammar.py     values -> rules of llguidance's Lark dialect
    numbers.py     ranges of numbers -> regular expressions
    ecmascript.py  `pattern` -> regular expressions, of text or of JSON strings
    formats.py     `format` -> patterns
    lexemes.py     questions about regular expressions that llguidance answers

llguidance has a compiler for JSON Schema. It computes bounds in double precision, ignores some
keywords and can end the process, so only its Lark dialect is used here.
"""
