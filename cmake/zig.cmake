# Toolchain file: cross-compile with the clang of the PyPI package ziglang, for any system and C library version.
#
#   cmake -DCMAKE_TOOLCHAIN_FILE=cmake/zig.cmake -DZINC_TARGET=aarch64-linux-gnu.2.28 -DZINC_ZIG=/path/to/zig ...
#
# ZINC_TARGET  architecture-system-abi, as zig names it; gnu.2.28 links against glibc 2.28
# ZINC_ZIG     the zig program; default: the one on the PATH
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZINC_TARGET ZINC_ZIG)
if(NOT ZINC_ZIG)
  find_program(ZINC_ZIG zig REQUIRED)
endif()

if(NOT ZINC_TARGET MATCHES "^([a-z0-9_]+)-(linux|macos|windows)")
  message(FATAL_ERROR "ZINC_TARGET is '${ZINC_TARGET}', not ARCHITECTURE-SYSTEM[-ABI]")
endif()
set(CMAKE_SYSTEM_PROCESSOR "${CMAKE_MATCH_1}")
set(system "${CMAKE_MATCH_2}")
if(system STREQUAL "linux")
  set(CMAKE_SYSTEM_NAME Linux)
elseif(system STREQUAL "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Windows)
endif()

set(CMAKE_CXX_COMPILER "${ZINC_ZIG};c++;-target;${ZINC_TARGET}")
set(CMAKE_CXX_ARCHIVE_CREATE "\"${ZINC_ZIG}\" ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "\"${ZINC_ZIG}\" ranlib <TARGET>")
set(ZINC_NEON "-mcpu=generic+v8_2a+dotprod" CACHE STRING "")  # zig has its own names of processors

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
