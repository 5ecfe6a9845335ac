"""JSON Schema as a grammar: every keyword is followed exactly, or the schema is refused.

    document.py    finds subschemas, $id, anchors; resolves $ref
    values.py      sets of JSON values, per JSON type
    sets.py        intersection, membership and emptiness of such sets
    keywords.py    keywords of a single JSON type to values
    formats.py     `format` to patterns
    evaluate.py    a subschema, with the schemas it refers to and applies, to values
    writer.py      values to rules; objects.py does objects, multiples.py `multipleOf`
    numbers.py     ranges of numbers to regular expressions
    symbols.py     rules as data, and their text
    rules.py       the entry: a schema to rules of llguidance's Lark dialect

llguidance has a compiler for JSON Schema. It computes bounds in double precision, ignores some
keywords and can end the process, so only its Lark dialect is used here.
"""
