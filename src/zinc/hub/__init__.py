"""Model names, downloads, and the model files of other programs.

names.py        the forms of a model name
catalogue.py    short names; the data is catalogue.toml
resolve.py      from a name to a file on this machine
pull.py         download a model: from a hub (huggingface.py) or Ollama's registry (ollama.py)
choice.py       which quantisation to take
download.py     one file: parts, resume, hash
local.py        models in the folders of zinc, Ollama, LM Studio and llama.cpp (folders.py)
"""
