"""Hostile chat templates, as pairs of name and source.

Each needs far more time or memory than is allowed, by a different feature of Jinja or Python.
"""

from __future__ import annotations

# Loops around a statement that runs until it is stopped; the sandbox limits `range` to 100,000.
_FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}"
_END = "{% endfor %}{% endfor %}"
_DOUBLING = "{% set ns = namespace(s='ab', l=[1, 2], d={}, n=3) %}{% for i in range(60) %}"
# 30 million characters, which the limit allows once or twice.
_LONG = "{% set s = 'a b' * 10000000 %}"


def _forever(statement: str) -> str:
    return _FOREVER + statement + _END


def _doubling(statement: str, after: str = "") -> str:
    return _DOUBLING + statement + "{% endfor %}" + after


TEMPLATES = {
    # loops and calls
    "nested loops": _forever(""),
    "output of a loop": _forever("{{ messages }}"),
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "endless macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "recursive loop": "{% for x in [[1, 2]] recursive %}{{ loop([x, x]) }}{{ loop([x, x]) }}"
    "{% endfor %}",
    "huge range": "{% for x in range(10 ** 12) %}{% endfor %}",
    "range to a list": "{{ range(10 ** 12) | list }}",
    "generators of generators": "{% set ns = namespace(g=range(90000)) %}{% for i in range(900) %}"
    "{% set ns.g = ns.g | map('string') %}{% endfor %}{{ ns.g | list }}",
    # nested lists, which are small but take long to print
    "comparison of nested lists": "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "text of nested lists": _doubling("{% set ns.l = [ns.l, ns.l] %}", "{{ ns.l }}"),
    "JSON of nested lists": _doubling("{% set ns.l = [ns.l, ns.l] %}", "{{ ns.l | tojson }}"),
    "pprint of nested lists": _doubling("{% set ns.l = [ns.l, ns.l] %}", "{{ ns.l | pprint }}"),
    "hash of nested tuples": _doubling("{% set ns.l = (ns.l, ns.l) %}", "{{ {ns.l: 1} }}").replace(
        "l=[1, 2]", "l=(1, 2)"
    ),
    "nested dictionaries": _doubling("{% set ns.d = {'a': ns.d, 'b': ns.d} %}", "{{ ns.d }}"),
    "sorting nested lists": _doubling(
        "{% set ns.l = [ns.l, ns.l] %}", "{{ [ns.l, ns.l, ns.l] | sort }}"
    ),
    "membership of nested lists": "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a in [ns.b] }}",
    "deeply nested list": "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
    # numbers
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": _doubling("{% set ns.n = ns.n * ns.n %}", "{{ ns.n }}"),
    "text of a number": "{{ (7 ** 4000000) | string }}{{ '%d' % 7 ** 4000000 }}"
    "{% for i in range(99) %}{{ 7 ** 4000000 % (10 ** 1000000 + i) }}{% endfor %}",
    "shifts by powers": _forever("{% set x = 2 ** 9999999 // 3 %}"),
    "rounding": "{{ 5 | round(10 ** 12) }}{{ (1.5 * 10 ** 300) | round(-(10 ** 9)) }}"
    + _forever("{% set x = (i * 1.5) | round(300, 'floor') %}"),
    # strings and lists that grow
    "string times": "{{ 'a' * 10000000000 }}",
    "list times": "{{ [1] * 10000000000 }}",
    "tuple times": "{{ (1, 2) * 10000000000 }}",
    "concatenation": _doubling("{% set ns.s = ns.s ~ ns.s %}"),
    "addition": _doubling("{% set ns.s = ns.s + ns.s %}"),
    "lists": _doubling("{% set ns.l = ns.l + ns.l %}"),
    "capture": _doubling("{% set c %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = c %}"),
    "join": _doubling("{% set ns.s = [ns.s, ns.s] | join %}"),
    "replace": _doubling("{% set ns.s = ns.s | replace('a', ns.s) %}"),
    "replace of nothing": _doubling("{% set ns.s = ns.s.replace('', ns.s) %}"),
    "translate": _doubling("{% set ns.s = ns.s.translate({97: ns.s, 98: ns.s}) %}"),
    "case of ligatures": _LONG + "{% set ns = namespace(s='\ufb03' * 9000000) %}"
    "{% for i in range(60) %}{% set ns.s = ns.s.upper() * 2 %}{% endfor %}",
    "copies": _LONG + "{% set ns = namespace(l=[]) %}{% for i in range(99) %}"
    "{% set ns.l = ns.l + [s | upper, s.lower(), s[1:]] %}{% endfor %}",
    "sum": "{% set l = [[1] * 9999] * 9999 %}{{ l | sum(start=[]) | length }}",
    "namespace": "{% set ns = namespace() %}{% for i in range(99999) %}"
    "{% set ns.x = [ns.x, 'x' * 100000 ~ i] %}{% endfor %}",
    "bytes": _LONG + "{% for i in range(9999) %}{% set x = s.encode('utf-32').hex() %}{% endfor %}",
    # widths
    "center": "{{ 'a' | center(10000000000) }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "zfill": "{{ '1'.zfill(10000000000) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(100000000) }}",
    "indent": "{{ ('a\n' * 100000) | indent(1000000) }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "format with a width of its own": "{{ '{0:{1}}'.format(1, 10000000000) }}",
    "format_map": "{{ '{a:{b}}'.format_map({'a': 1, 'b': 10000000000}) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent with a star": "{{ '%*d' % (10000000000, 1) }}",
    "filter format": "{{ '%10000000000d' | format(1) }}",
    "JSON with an indent": "{{ [1] | tojson(indent=10000000000) }}",
    "time": _forever("{% set x = strftime_now('%c' * 9999) %}"),
    # filters
    "batch": "{{ [1] | batch(10000000000, 'x') | list }}",
    "slice": "{{ [1] | slice(10000000000, 'x') | list }}",
    "wordwrap": _LONG + "{{ s | wordwrap(1, wrapstring='x' * 1000000) }}",
    "striptags": "{% set s = '<!--' * 500000 %}" + _forever("{{ s | striptags | length }}"),
    "urlize": "{% set s = 'www.a.com ' * 999999 %}" + _forever("{{ s | urlize | length }}"),
    "xmlattr": _forever("{% set x = {'a': 'b' * 1000000} | xmlattr %}"),
    "escape": "{% set s = '<' * 90000000 %}{{ s | escape | escape | escape | length }}",
    "title": _LONG + "{{ s | title | title | length }}",
    "unique": "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}"
    "{% set ns.l = ns.l + [['x' * 10000, i] | string] %}{% endfor %}"
    + _forever("{% set x = ns.l | unique | list %}"),
    "groupby": "{% set l = [{'a': 1}] * 999999 %}" + _forever("{% set x = l | groupby('a') %}"),
    "sort": "{% set l = range(99999) | list %}" + _forever("{% set x = l | sort(reverse=true) %}"),
    "random": _forever("{% set x = range(99999) | list | random %}"),
    "splitting": _LONG + "{% set x = s.split() %}{% set y = s | list %}{{ y | length }}",
    "hashes that collide": "{% set m = 2 ** 61 - 1 %}{% set ns = namespace(l=[]) %}"
    "{% for i in range(20000) %}{% set ns.l = ns.l + [i * m] %}{% endfor %}"
    "{{ ns.l | unique | list | length }}" + _forever("{% set x = ns.l | unique | list %}"),
    # the source itself
    "nested brackets": "{{ " + "(" * 90000 + "1" + ")" * 90000 + " }}",
    "nested blocks": "{% if 1 %}" * 30000 + "{% endif %}" * 30000,
    "nested loops in the source": "{% for x in [1] %}" * 2000 + "{% endfor %}" * 2000,
    "many operators": "{{ " + "1 + " * 150000 + "1 }}",
    "giant constant": "{{ " + "9" * 900000 + " }}",
    "many filters": "{{ 'a'" + " | upper" * 100000 + " }}",
    "many blocks": "{% macro f() %}{% endmacro %}" * 30000,
}
