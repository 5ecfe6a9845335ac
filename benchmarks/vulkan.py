"""Measure prefill, decode and whole answers on the Vulkan backend.

    python benchmarks/vulkan.py results.json [--shapes qwen3-8b qwen36-35b-a3b] [--depths 0 16384]

See `benchmarks/gpu.py`.
"""

import gpu

if __name__ == "__main__":
    raise SystemExit(gpu.main("vulkan", (__doc__ or "").splitlines()[0]))
