"""JSON schemas, regular expressions and grammars, turned into grammars that llguidance compiles.

    kinds.py   kinds of constraint that a request may name, and the grammar of each
    library.py the package llguidance
    lark.py    checks of regular expressions, Lark and GBNF
    schema/    JSON Schema to rules of llguidance's Lark dialect
    pattern/   regular expressions of JSON Schema to those of llguidance

All functions turn text into text; zinc.engine.structured turns a grammar into token masks.
"""
