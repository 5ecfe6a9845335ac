"""Regular expressions of JSON Schema (ECMA-262, `u` flag) in the syntax of llguidance.

    chars.py      sets of characters
    tree.py       syntax tree
    parser.py     pattern to tree
    anchors.py    search to full match
    render.py     tree to an expression, of plain text or of JSON strings
    terminals.py  pattern to terminal; tests of terminals with llguidance's lexer

A pattern is parsed into a tree, its anchors are resolved, and the result is written as text.
"""
