"""JSON schemas, regular expressions and grammars as checked text that llguidance can compile.

    kinds.py   the kinds of constraint that a request may name, each turned into a grammar
    lark.py    checks of regular expressions, Lark and GBNF
    schema/    JSON Schema to rules of llguidance's Lark dialect

Everything here is text to text; zinc.engine.structured turns the result into token masks.
"""
