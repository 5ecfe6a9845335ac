"""Compile the Vulkan kernels that a wheel contains into FOLDER; CMakeLists.txt runs this.

    python cmake/prebuild.py FOLDER [MODEL.gguf...]

The kernels are those of the embedded model for every class of device, and those of each MODEL, of
which only the metadata is read. Without a Slang compiler or numpy the folder stays empty, and
kernels are compiled when they are first used.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))


def main(folder: Path, models: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("numpy") is None:
        print("no Vulkan kernels are prebuilt: numpy is not installed")
        return
    from zinc.backends.vulkan import VulkanKernels, prebuild, shaders
    from zinc.engine.load import self_test
    from zinc.engine.load.files import EMBEDDED_MODEL
    from zinc.engine.load.options import LoadOptions
    from zinc.engine.load.planned import plan_graph
    from zinc.formats.gguf import GGUFFile
    from zinc.gpu.bucket import Bucket
    from zinc.models import load

    if shaders.compiler() is None:
        print("no Vulkan kernels are prebuilt: there is no Slang compiler")
        return
    wanted = set()
    for path in (EMBEDDED_MODEL, *models):
        with GGUFFile.open(path) as file:
            spec, graph = load(file)
        plan = plan_graph(graph, VulkanKernels(), LoadOptions())
        wanted |= prebuild.shipped(plan, prebuild.device_classes(), spec.context)
    for _, case in self_test.cases():
        plan = self_test.plan_case(case, VulkanKernels())
        steps = [Bucket.of_step(plan, step) for step in self_test.steps(case)]
        for device in prebuild.device_classes():
            wanted |= prebuild.shaders(plan, device, steps, "f16")
    prebuild.build(wanted, folder)
    names = {f"{shaders.key(shader)}.spv" for shader in wanted}
    for path in folder.iterdir():
        if path.name not in names:  # left over from an older version of the source
            path.unlink()
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(names)} Vulkan kernels are prebuilt: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
