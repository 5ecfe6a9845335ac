"""Vulkan's functions: `Library` for the loader and instance, `Functions` for a device.

Each function is declared by one line of argument kinds. Pass structs with `byref`, which keeps them
alive: other threads run during a call and may collect garbage. A negative result raises DeviceError
with the name of the call, or MemoryLimitError if memory ran out. Other results are returned.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import c_float, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any

from zinc.backends.vulkan.vk import types as vk
from zinc.core.errors import DeviceError, MemoryLimitError
from zinc.gpu.errors import DeviceLostError, out_of_memory

Function = Callable[..., Any]
PORTABILITY = b"VK_KHR_portability_enumeration"  # without it loaders hide MoltenVK
# Folders of Homebrew on Apple processors and on Intel's, where the Vulkan SDK installs too.
HOMEBREW = "/opt/homebrew/lib/", "/usr/local/lib/"
DRIVER_HINT = (
    "install one: brew install molten-vk"
    if sys.platform == "darwin"
    else "install the driver of your GPU (Mesa: package mesa-vulkan-drivers)"
)
HOW_TO_INSTALL = {
    "linux": (
        "install it (Debian and Ubuntu: apt install libvulkan1), with the driver of your GPU"
    ),
    "darwin": "install it with a driver: brew install vulkan-loader molten-vk",
    "win32": "install the driver of your GPU, which contains it",
}

_KINDS: dict[str, Any] = {"h": c_uint64, "p": c_void_p, "u": c_uint32, "q": c_uint64, "f": c_float}

# name -> argument kinds: h handle, p pointer, u uint32, q uint64; "!" first: returns a VkResult.
_INSTANCE = {
    "vkEnumeratePhysicalDevices": "!hpp",
    "vkGetPhysicalDeviceProperties2": "hp",
    "vkGetPhysicalDeviceFeatures2": "hp",
    "vkGetPhysicalDeviceMemoryProperties2": "hp",
    "vkGetPhysicalDeviceQueueFamilyProperties": "hpp",
    "vkEnumerateDeviceExtensionProperties": "!hppp",
    "vkCreateDevice": "!hppp",
    "vkGetDeviceProcAddr": "hp",
}
_DEVICE = {
    "vkGetDeviceQueue": "huup",
    "vkCreateBuffer": "!hppp",
    "vkDestroyBuffer": "hhp",
    "vkGetBufferMemoryRequirements": "hhp",
    "vkAllocateMemory": "!hppp",
    "vkFreeMemory": "hhp",
    "vkBindBufferMemory": "!hhhq",
    "vkMapMemory": "!hhqqup",
    "vkCreateShaderModule": "!hppp",
    "vkDestroyShaderModule": "hhp",
    "vkCreatePipelineLayout": "!hppp",
    "vkCreatePipelineCache": "!hppp",
    "vkGetPipelineCacheData": "!hhpp",
    "vkCreateComputePipelines": "!hhuppp",
    "vkCreateCommandPool": "!hppp",
    "vkDestroyCommandPool": "hhp",
    "vkAllocateCommandBuffers": "!hpp",
    "vkBeginCommandBuffer": "!hp",
    "vkEndCommandBuffer": "!h",
    "vkCmdBindPipeline": "huh",
    "vkCmdPushConstants": "hhuuup",
    "vkCmdDispatch": "huuu",
    "vkCmdPipelineBarrier": "huuuupupup",
    "vkCmdCopyBuffer": "hhhup",
    "vkCmdFillBuffer": "hhqqu",
    "vkCmdResetQueryPool": "hhuu",
    "vkCmdWriteTimestamp": "huhu",
    "vkCreateQueryPool": "!hppp",
    "vkDestroyQueryPool": "hhp",
    "vkGetQueryPoolResults": "!hhuuqpqu",
    "vkCreateSemaphore": "!hppp",
    "vkWaitSemaphores": "!hpq",
    "vkGetSemaphoreCounterValue": "!hhp",
    "vkQueueSubmit": "!huph",
}


def check(result: int, call: str) -> int:
    """Return `result` if it is not an error. Raises DeviceError or MemoryLimitError."""
    if result >= 0:
        return result
    why = f"{call} says: {vk.RESULTS.get(result, f'error {result}')}"
    if result == vk.OUT_OF_DEVICE_MEMORY:
        raise out_of_memory(why)
    if result == vk.OUT_OF_HOST_MEMORY:
        raise MemoryLimitError("the Vulkan driver has no memory left", why, "close other programs")
    if result == vk.DEVICE_LOST:
        raise DeviceLostError("Vulkan", f"{call} found that its driver gave up or was reset")
    raise DeviceError("a Vulkan call failed", why, "update the driver of the device")


def _function(address: int, kinds: str, name: str) -> Function:
    returns_result = kinds.startswith("!")
    arguments = [_KINDS[kind] for kind in kinds.lstrip("!")]
    prototype = ctypes.CFUNCTYPE(c_int32 if returns_result else None, *arguments)
    function = prototype(address)
    if not returns_result:
        return function

    def checked(*args: Any) -> int:
        result: int = function(*args)
        return result if result >= 0 else check(result, name)

    return checked


class Library:
    """The Vulkan loader with an instance. Raises DeviceError if there is none."""

    def __init__(self) -> None:
        self._dll = _load()
        self._get = self._dll.vkGetInstanceProcAddr
        self._get.restype, self._get.argtypes = c_void_p, [c_uint64, ctypes.c_char_p]
        self.instance = self._create_instance()
        for name, kinds in _INSTANCE.items():
            setattr(self, name, self.function(name, kinds))
        self._get_device = ctypes.CFUNCTYPE(c_void_p, c_uint64, ctypes.c_char_p)(
            self.address("vkGetDeviceProcAddr")
        )

    def __getattr__(self, name: str) -> Function:
        raise AttributeError(f"the Vulkan binding does not declare {name}")

    def address(self, name: str) -> int:
        found: int | None = self._get(self.instance, name.encode())
        if not found:
            raise DeviceError(
                "the Vulkan loader is too old",
                f"it has no {name}",
                "install a loader for Vulkan 1.3 (package libvulkan1)",
            )
        return found

    def function(self, name: str, kinds: str) -> Function:
        """Return a function of an extension."""
        return _function(self.address(name), kinds, name)

    def functions(self, device: int) -> Functions:
        return Functions(lambda name: self._get_device(device, name.encode()))

    def _create_instance(self) -> int:
        create = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p)(
            self._get(0, b"vkCreateInstance")
        )
        application = vk.ApplicationInfo(apiVersion=vk.API_1_3)
        info = vk.InstanceCreateInfo(application=ctypes.addressof(application))
        names = (ctypes.c_char_p * 1)(PORTABILITY)
        if PORTABILITY in self._extensions():
            info.flags, info.nExtensions = vk.ENUMERATE_PORTABILITY, 1
            info.extensions = ctypes.addressof(names)
        handle = c_uint64()
        result = create(ctypes.byref(info), None, ctypes.byref(handle))
        if result < 0:
            raise DeviceError(
                "no Vulkan driver could be started",
                vk.RESULTS.get(result, f"error {result}"),
                DRIVER_HINT,
            )
        return handle.value

    def _extensions(self) -> set[bytes]:
        """Return the names of the instance extensions."""
        address = self._get(0, b"vkEnumerateInstanceExtensionProperties")
        get, count = _function(address, "!ppp", "extensions of an instance"), c_uint32()
        get(None, ctypes.byref(count), None)
        found = (vk.ExtensionProperties * count.value)()
        get(None, ctypes.byref(count), ctypes.byref(found))
        return {extension.name for extension in found[: count.value]}


class Functions:
    """The functions of one device, called without going through the loader."""

    def __init__(self, address: Callable[[str], int | None]) -> None:
        for name, kinds in _DEVICE.items():
            found = address(name)
            if not found:
                raise DeviceError(
                    "the Vulkan driver is too old",
                    f"it has no {name}",
                    "update the driver of the device",
                )
            setattr(self, name, _function(found, kinds, name))
        found = address("vkGetBufferDeviceAddress")
        assert found
        self.vkGetBufferDeviceAddress = ctypes.CFUNCTYPE(c_uint64, c_uint64, c_void_p)(found)

    def __getattr__(self, name: str) -> Function:
        raise AttributeError(f"the Vulkan binding does not declare {name}")


def _load() -> ctypes.CDLL:
    tried = library_names(sys.platform)
    for name in tried:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(
        "the Vulkan loader is missing",
        f"{tried[0]} was not found",
        HOW_TO_INSTALL.get(sys.platform, HOW_TO_INSTALL["linux"]),
    )


def library_names(platform: str) -> list[str]:
    """Return the names and paths of the Vulkan loader on a system (`sys.platform`), best first.

    On macOS, the driver can be loaded instead of a loader. The linker of macOS does not search the
    folders of Homebrew.
    """
    if platform == "win32":
        return ["vulkan-1.dll"]
    if platform == "darwin":
        libraries = "libvulkan.1.dylib", "libMoltenVK.dylib"
        return [folder + library for library in libraries for folder in ("", *HOMEBREW)]
    return ["libvulkan.so.1"]
