"""SPIR-V whose stores make themselves available to later dispatches (docs/barriers.md).

A barrier whose source access is shader writes makes RADV write back and invalidate the whole L2
cache of an AMD GPU. Kernels that `coherent` has rewritten need barriers of execution only:

- each store makes its value available to the shader domain, that is to all shaders of the device;
- each kernel begins with an acquire barrier that makes available values visible to its loads;
- loads of memory that no kernel writes go through structs whose member is NonWritable, so that
  drivers may still cache what they load.

Every access of a module is rewritten, so no store of a kernel can be missed. SPIR-V for other
devices is not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zinc.backends.vulkan import spirv
from zinc.backends.vulkan.spirv import (
    DEVICE_SCOPE,
    VULKAN_MODEL,
    WITH_OPERAND,
    Capability,
    Decoration,
    Instruction,
    MemoryAccess,
    Op,
    Semantics,
    StorageClass,
)
from zinc.core.errors import DeviceError

# Structs of the kernels' sources by name: pointers in the first lead to packed weights, and the
# second lies in memory that the host writes. No kernel writes either.
HOLDS_CONSTANTS, IS_CONSTANT = "Matrix", "StepHeader"

# Operations whose result is a pointer into the same memory as their first operand.
MOVES = frozenset(
    {
        Op.ACCESS_CHAIN,
        Op.IN_BOUNDS_ACCESS_CHAIN,
        Op.PTR_ACCESS_CHAIN,
        Op.IN_BOUNDS_PTR_ACCESS_CHAIN,
        Op.COPY_OBJECT,
        Op.BITCAST,
    }
)
# Other operations whose result may be a pointer or hold one.
MAKES = frozenset(
    {
        Op.FUNCTION_PARAMETER,
        Op.FUNCTION_CALL,
        Op.VARIABLE,
        Op.LOAD,
        Op.COMPOSITE_CONSTRUCT,
        Op.COMPOSITE_EXTRACT,
        Op.CONVERT_U_TO_PTR,
        Op.SELECT,
        Op.PHI,
    }
)
# Loads and stores: where their operands have the pointer, and where the memory access begins.
LOADS = {Op.LOAD: (2, 3), Op.COOPERATIVE_MATRIX_LOAD: (2, 5)}
STORES = {Op.STORE: (0, 2), Op.COOPERATIVE_MATRIX_STORE: (0, 4)}
CAPABILITIES = [
    Instruction(Op.CAPABILITY, [capability])
    for capability in (
        Capability.VULKAN_MEMORY_MODEL,
        Capability.VULKAN_MEMORY_MODEL_DEVICE_SCOPE,
    )
]


def coherent(code: bytes) -> bytes:
    """Return a kernel's SPIR-V with stores that are available to every later dispatch.

    Raises DeviceError for a module with something that the rewriting does not know.
    """
    module = [*spirv.instructions(code)]
    rewriter = _Rewriter(_Pointers(module), module, spirv.bound(code))
    body = rewriter.rewrite(module)
    return spirv.assemble(code, rewriter.bound, body)


class _Pointers:
    """The pointers of a module: their storage classes, and which of them lead to constants."""

    def __init__(self, module: Sequence[Instruction]) -> None:
        self._names: dict[int, str] = {}
        self._types: dict[int, tuple[int, int]] = {}  # storage class and pointee
        self._made: dict[int, Instruction] = {}  # instructions by their results
        self._given: dict[int, list[int]] = {}  # arguments that calls give to each parameter
        parameters: dict[int, list[int]] = {}
        calls: list[list[int]] = []
        function = 0
        for instruction in module:
            op, x = instruction
            if op == Op.NAME:
                self._names[x[0]] = spirv.text(x[1:])
            elif op == Op.TYPE_POINTER:
                self._types[x[0]] = x[1], x[2]
            elif op == Op.FUNCTION:
                function = x[1]
            elif op == Op.FUNCTION_PARAMETER:
                parameters.setdefault(function, []).append(x[1])
            elif op == Op.FUNCTION_CALL:
                calls.append(x[2:])
            if op in MOVES or op in MAKES:
                self._made[x[1]] = instruction
        for called, *arguments in calls:
            for parameter, argument in zip(parameters.get(called, []), arguments, strict=True):
                self._given.setdefault(parameter, []).append(argument)

    def type(self, pointer: int) -> int:
        """Return the id of a pointer's type. Raises DeviceError if `pointer` is unknown."""
        if pointer not in self._made or self._result_type(pointer) not in self._types:
            raise _unknown("a pointer of unknown origin")
        return self._result_type(pointer)

    def storage(self, pointer: int) -> int:
        return self._types[self.type(pointer)][0]

    def is_constant(self, pointer: int) -> bool:
        """Return whether a pointer certainly leads to memory that no kernel writes."""
        if pointer not in self._made:
            return False
        op, x = self._made[pointer]
        if self._pointee(x[0]) == IS_CONSTANT:
            return True
        if op in MOVES:
            return self.is_constant(x[2])
        if op == Op.FUNCTION_PARAMETER:
            given = self._given.get(pointer, [])
            return bool(given) and all(map(self.is_constant, given))
        if op == Op.LOAD and x[2] in self._made and self._made[x[2]].op in MOVES:
            holder = self._made[x[2]].operands[2]
            return holder in self._made and self._pointee(self._result_type(holder)) == (
                HOLDS_CONSTANTS
            )
        if op == Op.COMPOSITE_EXTRACT and x[2] in self._made:
            return self._name(self._result_type(x[2])) == HOLDS_CONSTANTS
        return False

    def _result_type(self, id: int) -> int:
        return self._made[id].operands[0]

    def _pointee(self, type: int) -> str:
        return self._name(self._types[type][1]) if type in self._types else ""

    def _name(self, type: int) -> str:
        """Return the name of a struct in Slang, without the layout that follows it."""
        return self._names.get(type, "").partition("_")[0]


class _Rewriter:
    """The rewriting of a module, with the ids, constants and types that it adds."""

    def __init__(self, pointers: _Pointers, module: Sequence[Instruction], bound: int) -> None:
        self.bound = bound
        self._pointers = pointers
        self._declared: list[Instruction] = []
        self._decorations: list[Instruction] = []
        self._read_only: dict[int, int] = {}  # pointers to structs with a member of a type
        self._integer = next(x[0] for op, x in module if op == Op.TYPE_INT and x[1:] == [32, 0])
        constants = (x for op, x in module if op == Op.CONSTANT and x[0] == self._integer)
        self._values = {x[1]: x[2] for x in constants}
        self._constants = {value: id for id, value in self._values.items()}

    def rewrite(self, module: Sequence[Instruction]) -> list[Instruction]:
        start = next(i for i, (op, _) in enumerate(module) if op == Op.FUNCTION)
        main = next(x[1] for op, x in module if op == Op.ENTRY_POINT)
        functions = self._with_acquire([y for x in module[start:] for y in self._one(x)], main)
        head = [y for x in module[:start] for y in self._one(x)]
        head = [*CAPABILITIES, *(x for x in head if x not in CAPABILITIES)]
        decorated = (Op.DECORATE, Op.MEMBER_DECORATE)
        end = max((i for i, (op, _) in enumerate(head) if op in decorated), default=0) + 1
        return [*head[:end], *self._decorations, *head[end:], *self._declared, *functions]

    def _one(self, instruction: Instruction) -> Iterable[Instruction]:
        """Yield what an instruction becomes."""
        op, x = instruction
        if op in (Op.COPY_MEMORY, Op.COPY_MEMORY_SIZED) or (
            op in (Op.DECORATE, Op.MEMBER_DECORATE)
            and x[op - Op.DECORATE + 1] in (Decoration.COHERENT, Decoration.VOLATILE)
        ):
            raise _unknown(f"the operation {op}")
        if op == Op.MEMORY_MODEL:
            yield Instruction(op, [x[0], VULKAN_MODEL])
        elif op in (Op.CONTROL_BARRIER, Op.MEMORY_BARRIER):
            yield Instruction(op, [*x[:-1], self._semantics(x[-1])])
        elif op in LOADS or op in STORES:
            yield from self._access(instruction)
        else:
            yield instruction

    def _access(self, instruction: Instruction) -> Iterable[Instruction]:
        """Yield a load or store that takes part in synchronisation, or a load of constants."""
        op, x = instruction
        where, end = LOADS[Op(op)] if op in LOADS else STORES[Op(op)]
        storage = self._pointers.storage(x[where])
        is_buffer = storage == StorageClass.PHYSICAL_STORAGE_BUFFER
        if not is_buffer and storage != StorageClass.WORKGROUP:
            yield instruction
        elif is_buffer and self._pointers.is_constant(x[where]):
            if op != Op.LOAD:
                raise _unknown(f"the operation {op} on constants")
            cast, member = self._read_only_pointer(x[where], x[0])
            yield cast
            yield member
            yield Instruction(op, [*x[:where], member.operands[1], *x[where + 1 :]])
        else:
            available = is_buffer and op in STORES
            yield Instruction(op, [*x[:end], *self._memory_access(x[end:], available)])

    def _memory_access(self, access: Sequence[int], available: bool) -> list[int]:
        """Return the memory operands `access` with those of a non-private access added.

        available: also make the stored value available to the device.
        """
        flags, *given = access or [0]
        operands = dict(zip((f for f in WITH_OPERAND if flags & f), given, strict=True))
        flags |= MemoryAccess.NON_PRIVATE_POINTER
        if available:
            flags |= MemoryAccess.MAKE_POINTER_AVAILABLE
            operands[MemoryAccess.MAKE_POINTER_AVAILABLE] = self._constant(DEVICE_SCOPE)
        return [flags, *(operands[flag] for flag in WITH_OPERAND if flag in operands)]

    def _read_only_pointer(self, pointer: int, pointee: int) -> tuple[Instruction, Instruction]:
        """Return a cast to a pointer to a read-only struct, and a pointer to its member."""
        if pointee not in self._read_only:
            struct, self._read_only[pointee] = self._id(), self._id()
            self._decorations += [
                Instruction(Op.DECORATE, [struct, Decoration.BLOCK]),
                Instruction(Op.MEMBER_DECORATE, [struct, 0, Decoration.OFFSET, 0]),
                Instruction(Op.MEMBER_DECORATE, [struct, 0, Decoration.NON_WRITABLE]),
            ]
            storage = StorageClass.PHYSICAL_STORAGE_BUFFER
            self._declared += [
                Instruction(Op.TYPE_STRUCT, [struct, pointee]),
                Instruction(Op.TYPE_POINTER, [self._read_only[pointee], storage, struct]),
            ]
        cast, member, type = self._id(), self._id(), self._pointers.type(pointer)
        return (
            Instruction(Op.BITCAST, [self._read_only[pointee], cast, pointer]),
            Instruction(Op.ACCESS_CHAIN, [type, member, cast, self._constant(0)]),
        )

    def _semantics(self, id: int) -> int:
        """Return semantics that also make stores available and visible."""
        value = self._values[id]
        if value & (Semantics.RELEASE | Semantics.ACQUIRE_RELEASE):
            value |= Semantics.MAKE_AVAILABLE
        if value & (Semantics.ACQUIRE | Semantics.ACQUIRE_RELEASE):
            value |= Semantics.MAKE_VISIBLE
        return self._constant(value)

    def _with_acquire(self, functions: list[Instruction], main: int) -> list[Instruction]:
        """Return the functions with an acquire barrier after the variables of the entry point."""
        start = next(i for i, (op, x) in enumerate(functions) if op == Op.FUNCTION and x[1] == main)
        skipped = (Op.FUNCTION, Op.FUNCTION_PARAMETER, Op.LABEL, Op.VARIABLE, Op.LINE, Op.NO_LINE)
        at = next(i for i in range(start, len(functions)) if functions[i].op not in skipped)
        value = Semantics.ACQUIRE | Semantics.UNIFORM_MEMORY | Semantics.MAKE_VISIBLE
        operands = [self._constant(DEVICE_SCOPE), self._constant(value)]
        return [*functions[:at], Instruction(Op.MEMORY_BARRIER, operands), *functions[at:]]

    def _constant(self, value: int) -> int:
        """Return the id of an integer constant, which is declared if there is none."""
        if value not in self._constants:
            self._constants[value] = self._id()
            constant = Instruction(Op.CONSTANT, [self._integer, self._constants[value], value])
            self._declared.append(constant)
        return self._constants[value]

    def _id(self) -> int:
        self.bound += 1
        return self.bound - 1


def _unknown(what: str) -> DeviceError:
    return DeviceError("a kernel cannot be made coherent", f"its SPIR-V has {what}")
