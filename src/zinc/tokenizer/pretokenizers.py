r"""Pre-tokenizers: how text is split into words before byte-pair merges, by `tokenizer.ggml.pre`.

A pre-tokenizer is a list of regular expressions, as published with each model. Each expression
splits the pieces that the previous one left; matches and the text between them both become pieces.
The patterns are written for Oniguruma (Unicode classes, `\s` is White_Space), which the
`tokenizers` library uses. For some models, GGUF files in circulation expect a pattern that differs
from the published one; a comment says where.
"""

from __future__ import annotations

from zinc.core.dataclass import dataclass
from zinc.core.errors import UnsupportedError

# English contractions in either case. `(?i:...)` would also fold the long s (U+017F).
_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _modern(digits: str, contraction: str = f"(?:{_CONTRACTION})|") -> str:
    return f"{contraction}{_WORD}|{digits}|{_SYMBOLS}|{_SPACES}"


_LLAMA3 = _modern(r"\p{N}{1,3}")
_QWEN2 = _modern(r"\p{N}")
_QWEN35 = (
    rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# Line breaks after symbols are not part of them.
_SEED = rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_SINGLE_DIGITS = (r"\p{N}", _GPT2)


def _cased(letter: str, contraction: str, digits: str) -> str:
    """Return a pattern that splits words where the case changes (o200k, Tekken).

    The published patterns use Unicode cases (Lu, Lt, Lm, Lo, M against Ll, Lm, Lo, M). The tools
    that GGUF files are made for distinguish the case of ASCII letters only. This differs in other
    scripts with case (`ÄäÄ`) and with combining marks.
    """
    upper = rf"(?:(?={letter})[^a-z])"
    lower = rf"(?:(?={letter})[^A-Z])"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_ENDING = f"(?:{_CONTRACTION})?"
_GPT4O = _cased(r"\p{L}", _ENDING, r"\p{N}{1,3}")
_GRANITE_EMBEDDING = _cased(r"[\p{L}\p{M}]", _ENDING, r"\p{N}{1,3}")
_TEKKEN = _cased(r"\p{L}", "", r"\p{N}")


def _code_points(ranges: str) -> str:
    """Return the inside of a character class for hexadecimal code points and ranges."""
    return "".join(
        "-".join(f"\\x{{{point}}}" for point in item.split("-")) for item in ranges.split()
    )


# The ranges include some spaces (U+2000, U+3000), which are not part of a word.
_CJK = rf"(?:(?!\s)[{_code_points('4E00-9FA5 800-4E00 AC00-D7FF')}])+"
_KANJI_KANA = f"[{_code_points('4E00-9FA5 3040-309F 30A0-30FF')}]+"
_ASIAN = (
    "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF "
    "1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
)
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _KANJI_KANA,
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# Groups of three digits, counted from the end of a number, and scripts without spaces. Only the
# start of a number looks ahead: the time stays linear in its length.
_AFMOE = (
    r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))|\p{N}{3}|\p{N}{1,2}",
    f"[{_code_points(_ASIAN)}]+",
    _DEEPSEEK3[-1],
)
# A word goes on over single spaces, so that a token may hold several words.
_EXAONE_MOE = (
    rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}\p{{M}}*(?: ?\p{{L}}\p{{M}}*)*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|{_SPACES}"
)
# Letters with case up to Unicode 13, as DeepSeek LLM's tokenizer lists them.
_DEEPSEEK_LETTERS = _code_points(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA "
    "1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 "
    "A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A "
    "FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF "
    "1E900-1E943"
)
_DEEPSEEK_PUNCTUATION = _code_points("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3001-3002")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    rf"\s?[{_DEEPSEEK_PUNCTUATION}]+",
    r"\s+\z",
    _CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
# Words end at punctuation of the scripts that BLOOM was trained on.
_BLOOM = rf" ?[^(\s|.,!?{_code_points('2026 3002 FF0C 3001 964 6D4 60C')})]+"
_LINES = (r"[^\n]+|\n+",)


@dataclass(frozen=True)
class PreTokenizer:
    """Splitting rules of a family of byte-pair tokenizers, and defaults for missing metadata.

    patterns: expressions that are applied in order. ignore_merges: a word that is a token stays
    one, whatever the merges say. add_bos: default if the file does not say. always_bos: add BOS
    even if the file says otherwise, as files of the family are known to be wrong. byte_level: bytes
    are spelled as GPT-2's printable characters; otherwise tokens are UTF-8 with `▁` for a space and
    `<0xNN>` for single bytes. spaces_in_words: a word may be as long as a line.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    always_bos: bool = False
    byte_level: bool = True
    spaces_in_words: bool = False


_KINDS: dict[PreTokenizer, str] = {
    PreTokenizer(_DEFAULT): "default",
    PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    PreTokenizer((_LLAMA3,), ignore_merges=True): "glm4 glm5",
    PreTokenizer((r"\p{N}{1,3}", _modern(r"\p{N}+")), ignore_merges=True): "minicpm5",
    PreTokenizer((_QWEN2,)): (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"
        " bailingmoe bailingmoe2 llada-moe"
    ),
    PreTokenizer((_QWEN35,)): "qwen35",
    PreTokenizer((_SEED,)): "seed-coder",
    PreTokenizer((_EXAONE_MOE,), spaces_in_words=True): "exaone-moe",
    PreTokenizer(_AFMOE): "afmoe",
    PreTokenizer((_modern(r"\p{N}", contraction=""),)): "ufakzeka",
    PreTokenizer((r"[^\n]+|\n+", _QWEN2)): "laguna",
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert"
        " exaone4 jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling"
    ),
    PreTokenizer(_SINGLE_DIGITS): (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"
    ),
    PreTokenizer(_DEEPSEEK_LLM): "deepseek-llm",
    PreTokenizer(_DEEPSEEK_CODER): "deepseek-coder",
    PreTokenizer(_DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    PreTokenizer(_FALCON): "falcon",
    PreTokenizer((_GPT4O,)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    PreTokenizer((_GRANITE_EMBEDDING,), ignore_merges=True): "granite-embed-multi-97m",
    PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True): "tekken",
    PreTokenizer((_BLOOM,)): "bloom poro-chat gpt3-finnish",
    PreTokenizer((_BLOOM, r"\p{N}")): "viking",
    PreTokenizer(_LINES, byte_level=False, always_bos=True): "gemma4 granite-embed-multi-311m",
    PreTokenizer(_LINES, byte_level=False): "sarvam-moe",
}
_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def pretokenizer_names() -> list[str]:
    """Return all known values of `tokenizer.ggml.pre`, sorted."""
    return sorted(_BY_NAME)


def pretokenizer(name: str, path: str = "the model") -> PreTokenizer:
    """Return the pre-tokenizer with a name; an empty name means `default`.

    path: file to name in the error. Raises UnsupportedError for an unknown name, since another
    pre-tokenizer would give the model tokens that it was not trained on.
    """
    try:
        return _BY_NAME[name or "default"]
    except KeyError:
        raise UnsupportedError(
            f"{path} needs the pre-tokenizer {name!r}",
            "zinc does not know how it splits text, and a wrong guess would harm every answer",
            "update zinc, or convert the model again with a current converter if the name is wrong",
        ) from None
