"""Write the Slang declarations of structs and constants, or with `--cpp` print the C++ ones."""

from __future__ import annotations

import sys
from pathlib import Path

import zinc
from zinc.gpu.arguments.generate import cpp_header, write_slang

SLANG = Path(zinc.__file__).parent / "backends" / "vulkan" / "kernels" / "arguments"

if __name__ == "__main__":
    if "--cpp" in sys.argv[1:]:
        print(cpp_header(), end="")
    else:
        write_slang(SLANG)
