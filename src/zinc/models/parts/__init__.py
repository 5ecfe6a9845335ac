"""Building blocks of the model files: attention, experts, RoPE, specs and checked weights."""
