"""Loading: from `LoadOptions` to a `LoadedModel` that owns weights, cache, programs and engine.

options.py     what to load and how
planned.py     file, backend and plans; reads no weights
model.py       weights, cache, programs and engine
auto.py        which device backend="auto" means
device_map.py  how a model is divided between a device and the CPU
devices.py     how a model is divided over several devices
adapters.py    LoRA adapter files, checked against the model
memory.py      how large context and cache can be
fit.py         what a model takes of each memory, and whether it fits
"""
