"""Measure prefill, decode and whole answers on the CUDA backend.

    python benchmarks/cuda.py results.json [--shapes qwen3-8b qwen36-35b-a3b] [--depths 0 16384]

See `benchmarks/gpu.py`.
"""

import gpu

if __name__ == "__main__":
    raise SystemExit(gpu.main("cuda", (__doc__ or "").splitlines()[0]))
