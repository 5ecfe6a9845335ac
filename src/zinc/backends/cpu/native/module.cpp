// Bindings of the Python module zinc.backends.cpu._cpu: pools, packed weights, caches and programs. They
// contain no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <optional>

#include "kernels/check.h"
#include "kernels/kv_layout.h"
#include "levels.h"
#include "pack.h"
#include "pool.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace zinc {
namespace {

template <class T, int kDims>
using Array = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
using Ints = Array<int32_t, 1>;
using FloatArray = nb::ndarray<nb::numpy, float>;

RowFormat parse_row_format(std::string_view name) {
    for (RowFormat format :
         {RowFormat::f32, RowFormat::q8_32, RowFormat::q8_256, RowFormat::q15_32, RowFormat::bf16})
        if (name == format_name(format)) return format;
    throw std::invalid_argument("no row format '" + std::string(name) + "'");
}

Dim parse_dim(std::string_view name) {
    if (name == "constant") return Dim::constant;
    if (name == "tokens") return Dim::tokens;
    if (name == "outputs") return Dim::outputs;
    if (name == "sequences") return Dim::sequences;
    throw std::invalid_argument("no row dimension '" + std::string(name) + "'");
}

KvType parse_kv_type(std::string_view name) {
    if (name == "f16") return KvType::f16;
    if (name == "q8_0") return KvType::q8_0;
    if (name == "q4_0") return KvType::q4_0;
    throw std::invalid_argument("no KV type '" + std::string(name) + "'");
}

const WeightFormat& find_format(const Level& level, const std::string& type) {
    if (const WeightFormat* format = level.format(type)) return *format;
    const std::string text = "no kernel for weights of type " + type + " at level " + level.name;
    throw nb::key_error(text.c_str());
}

FloatArray new_floats(std::vector<size_t> shape) {
    size_t size = 1;
    for (size_t n : shape) size *= n;
    auto data = std::make_unique<float[]>(size);
    nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return FloatArray(data.release(), shape.size(), shape.data(), owner);
}

// A program and the Python objects that own the memory of its operands.
struct PyProgram {
    nb::object pool_owner;
    Program program;
    std::vector<nb::object> operand_owners;
    std::vector<Operand> parse(const nb::sequence& list) {
        std::vector<Operand> operands;
        for (nb::handle item : list) {
            Operand o;
            if (nb::isinstance<PackedTensor>(item)) {
                o.tensor = nb::cast<const PackedTensor*>(item);
            } else if (nb::isinstance<KVLayer>(item)) {
                o.kv = nb::cast<KVLayer*>(item);
            } else if (nb::isinstance<StateLayer>(item)) {
                o.state = nb::cast<StateLayer*>(item);
            } else if (!item.is_none()) {
                const auto [format, cols, offset, stride] =
                    nb::cast<std::tuple<std::string, int32_t, int64_t, int64_t>>(item);
                o.format = parse_row_format(format);
                if (cols <= 0) throw std::invalid_argument("an operand needs at least one column");
                o.cols = cols;
                o.stride = stride;
                o.data = reinterpret_cast<std::byte*>(offset);
            }
            if (o.tensor || o.kv || o.state) operand_owners.push_back(nb::borrow(item));
            operands.push_back(o);
        }
        return operands;
    }
};

template <class T>
int32_t length(const Array<T, 1>& array) {
    if (array.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
        throw std::invalid_argument("too many rows");
    return static_cast<int32_t>(array.size());
}

void run(PyProgram& self, int first, int last, Ints ids, Ints positions, Ints sequence, Ints output_rows,
         Ints seq_start, Ints state_slot, const std::vector<Array<int32_t, 2>>& tables,
         const std::optional<Array<float, 2>>& adapters) {
    Batch b;
    b.n_tokens = length(ids);
    b.n_outputs = length(output_rows);
    if (length(seq_start) < 1) throw std::invalid_argument("seq_start is empty");
    b.n_sequences = length(seq_start) - 1;
    if (length(positions) != b.n_tokens || length(sequence) != b.n_tokens)
        throw std::invalid_argument("ids, positions and sequence differ in length");
    if (length(state_slot) != b.n_sequences)
        throw std::invalid_argument("state_slot needs one slot per sequence");
    b.ids = ids.data();
    b.positions = positions.data();
    b.sequence = sequence.data();
    b.output_rows = output_rows.data();
    b.seq_start = seq_start.data();
    b.state_slot = state_slot.data();
    for (const auto& t : tables) {
        if (static_cast<int32_t>(t.shape(0)) != b.n_sequences)
            throw std::invalid_argument("a block table needs one row per sequence");
        b.tables.push_back({t.data(), static_cast<int64_t>(t.shape(1))});
    }
    if (adapters) {
        if (static_cast<int32_t>(adapters->shape(0)) != b.n_sequences)
            throw std::invalid_argument("adapters need one row per sequence");
        b.adapters = adapters->data();
        b.n_adapters = static_cast<int32_t>(adapters->shape(1));
    }
    nb::gil_scoped_release release;
    self.program.run(b, first, last);
}

std::vector<std::string> names(const std::vector<const Level*>& levels) {
    std::vector<std::string> found;
    for (const Level* level : levels) found.emplace_back(level->name);
    return found;
}

}  // namespace

NB_MODULE(_cpu, m) {
    m.doc() = "zinc's CPU kernels: weights in tiles, caches, and programs that run without the GIL";

    m.def("built_levels", [] { return names(built_levels()); });
    m.def("levels", [] { return names(runnable_levels()); });
    m.def(
        "row_format",
        [](const std::string& level, const std::string& type) {
            return std::string(format_name(find_format(find_level(level), type).row_format));
        },
        "level"_a, "type"_a);
    m.def(
        "packable",
        [](const std::string& level, const std::string& type) {
            return find_level(level).format(type) != nullptr;
        },
        "level"_a, "type"_a);
    m.def(
        "kernels",
        [](const std::string& level) {
            std::vector<std::string> names;
            const Level& found = find_level(level);
            for (size_t i = 0; i < found.n_kernels; ++i) names.emplace_back(found.kernels[i]->name);
            return names;
        },
        "level"_a);
    m.def(
        "row_bytes",
        [](const std::string& format, int64_t cols) {
            if (cols < 0 || cols > int64_t{1} << 31) throw std::invalid_argument("no such number of columns");
            return row_bytes(parse_row_format(format), cols);
        },
        "format"_a, "cols"_a);

    nb::class_<Pool>(m, "Pool")
        .def(
            "__init__",
            [](Pool* self, int n_threads) {
                if (n_threads < 1 || n_threads > 1024)
                    throw std::invalid_argument("a pool has 1 to 1024 threads");
                new (self) Pool(n_threads);
            },
            "n_threads"_a)
        .def_prop_ro("n_threads", &Pool::size);

    nb::class_<PackedTensor>(m, "PackedTensor")
        .def_prop_ro("format",
                     [](const PackedTensor& t) { return std::string(t.format ? t.format->name : "vector"); })
        .def_ro("planes", &PackedTensor::planes)
        .def_ro("rows", &PackedTensor::rows)
        .def_ro("cols", &PackedTensor::cols)
        .def_prop_ro("n_bytes", [](const PackedTensor& t) { return t.bytes.size; })
        .def("to_float32", [](const PackedTensor& t) {
            FloatArray out = new_floats(
                {static_cast<size_t>(t.planes), static_cast<size_t>(t.rows), static_cast<size_t>(t.cols)});
            float* data = out.data();
            {
                nb::gil_scoped_release release;
                unpack(t, data);
            }
            return out;
        });

    m.def(
        "allocate",
        [](const std::string& level, const std::string& type, int64_t planes, int64_t rows, int64_t cols) {
            const WeightFormat& format = find_format(find_level(level), type);
            nb::gil_scoped_release release;
            return allocate(format, planes, rows, cols);
        },
        "level"_a, "type"_a, "planes"_a, "rows"_a, "cols"_a);
    m.def(
        "pack_tiles",
        [](Pool& pool, PackedTensor& tensor, int64_t first_tile, Array<uint8_t, 1> data,
           std::optional<Array<uint8_t, 1>> codebook) {
            nb::gil_scoped_release release;
            return pack_tiles(
                pool, tensor, first_tile, {reinterpret_cast<const std::byte*>(data.data()), data.size()},
                codebook ? std::span(codebook->data(), codebook->size()) : std::span<const uint8_t>());
        },
        "pool"_a, "tensor"_a, "first_tile"_a, "data"_a, "codebook"_a = nb::none());
    m.def(
        "pack",
        [](Pool& pool, const std::string& level, const std::string& type, Array<uint8_t, 1> data,
           int64_t planes, int64_t rows, int64_t cols, std::optional<Array<int64_t, 1>> row_index,
           std::optional<Array<uint8_t, 1>> codebook) {
            const WeightFormat& format = find_format(find_level(level), type);
            nb::gil_scoped_release release;
            return pack(
                pool, format, {reinterpret_cast<const std::byte*>(data.data()), data.size()}, planes, rows,
                cols, row_index ? row_index->data() : nullptr, row_index ? row_index->size() : 0,
                codebook ? std::span(codebook->data(), codebook->size()) : std::span<const uint8_t>());
        },
        "pool"_a, "level"_a, "type"_a, "data"_a, "planes"_a, "rows"_a, "cols"_a, "row_index"_a = nb::none(),
        "codebook"_a = nb::none());
    m.def(
        "pack_vector", [](Array<float, 1> data) { return pack_vector(data.data(), data.size()); }, "data"_a);

    nb::class_<KVLayer>(m, "KVLayer")
        .def(
            "__init__",
            [](KVLayer* self, int group, int n_blocks, int block_tokens, int n_heads, int head_dim,
               int head_dim_v, const std::string& dtype, bool v_from_k) {
                const KvType type = parse_kv_type(dtype);
                if (group < 0) throw std::invalid_argument("KV cache: a negative group");
                kv_check(n_blocks, block_tokens, n_heads, head_dim, head_dim_v, type, v_from_k);
                KVLayer layer{group,      n_blocks, block_tokens, n_heads, head_dim,
                              head_dim_v, type,     v_from_k,     {},      {}};
                layer.k = Bytes(static_cast<size_t>(kv_k_bytes(layer)));
                layer.v = Bytes(static_cast<size_t>(kv_v_bytes(layer)));
                new (self) KVLayer(std::move(layer));
            },
            "group"_a, "n_blocks"_a, "block_tokens"_a, "n_heads"_a, "head_dim"_a, "head_dim_v"_a, "dtype"_a,
            "v_from_k"_a = false)
        .def_ro("group", &KVLayer::group)
        .def_prop_ro("n_bytes", [](const KVLayer& c) { return c.k.size + c.v.size; })
        .def("copy_block", &kv_copy_block, "src"_a, "dst"_a)
        .def(
            "read",
            [](const KVLayer& c, Ints blocks, int n_tokens) {
                if (n_tokens < 0 ||
                    (int64_t{n_tokens} + c.block_tokens - 1) / c.block_tokens > length(blocks))
                    throw std::invalid_argument("KV cache: more tokens than the blocks hold");
                const auto tokens = static_cast<size_t>(n_tokens), heads = static_cast<size_t>(c.n_heads);
                FloatArray k = new_floats({tokens, heads, static_cast<size_t>(c.head_dim)});
                FloatArray v = new_floats({tokens, heads, static_cast<size_t>(c.head_dim_v)});
                kv_read(c, blocks.data(), n_tokens, k.data(), v.data());
                return nb::make_tuple(k, v);
            },
            "blocks"_a, "n_tokens"_a)
        .def(
            "view",
            [](nb::handle_t<KVLayer> self, bool values) {
                auto& c = *nb::inst_ptr<KVLayer>(self);
                const auto blocks = static_cast<size_t>(c.n_blocks);
                Bytes& bytes = values ? c.v : c.k;  // the bytes in memory order: one row for each block
                return nb::ndarray<nb::numpy, uint8_t>(bytes.data, {blocks, bytes.size / blocks}, self);
            },
            "values"_a);

    nb::class_<StateLayer>(m, "StateLayer")
        .def(
            "__init__",
            [](StateLayer* self, int64_t slots, int64_t floats_per_slot) {
                if (slots < 1 || floats_per_slot < 1 ||
                    slots > std::numeric_limits<int64_t>::max() / 8 / floats_per_slot)
                    throw std::invalid_argument(
                        "a state needs at least one slot and one float, and a possible size");
                new (self) StateLayer{slots, floats_per_slot,
                                      Bytes(static_cast<size_t>(slots * floats_per_slot * 4))};
            },
            "slots"_a, "floats_per_slot"_a)
        .def_prop_ro("n_bytes", [](const StateLayer& s) { return s.bytes.size; })
        .def("view", [](nb::handle_t<StateLayer> self) {
            auto& s = *nb::inst_ptr<StateLayer>(self);
            return FloatArray(s.bytes.data,
                              {static_cast<size_t>(s.slots), static_cast<size_t>(s.floats_per_slot)}, self);
        });

    nb::class_<PyProgram>(m, "Program")
        .def(
            "__init__",
            [](PyProgram* self, nb::handle_t<Pool> pool, const std::string& level, int64_t arena_bytes) {
                new (self) PyProgram{
                    nb::borrow(pool), Program(*nb::inst_ptr<Pool>(pool), find_level(level), arena_bytes), {}};
            },
            "pool"_a, "level"_a, "arena_bytes"_a)
        .def(
            "add",
            [](PyProgram& self, const std::string& kernel, const std::string& dim, int32_t constant_rows,
               const nb::sequence& ins, const nb::sequence& outs, const nb::dict& attrs) {
                Attrs parsed;
                for (auto [key, value] : attrs)
                    parsed.items.emplace_back(nb::cast<std::string>(key), nb::cast<double>(value));
                return self.program.add(kernel, parse_dim(dim), constant_rows, self.parse(ins),
                                        self.parse(outs), parsed);
            },
            "kernel"_a, "dim"_a, "constant_rows"_a, "ins"_a, "outs"_a, "attrs"_a)
        .def("__len__", [](const PyProgram& self) { return self.program.size(); })
        .def(
            "step",
            [](PyProgram& self, Ints ids, Ints positions, Ints sequence, Ints output_rows, Ints seq_start,
               Ints state_slot, const std::vector<Array<int32_t, 2>>& tables,
               const std::optional<Array<float, 2>>& adapters) {
                run(self, 0, self.program.size(), ids, positions, sequence, output_rows, seq_start,
                    state_slot, tables, adapters);
            },
            "ids"_a, "positions"_a, "sequence"_a, "output_rows"_a, "seq_start"_a, "state_slot"_a, "tables"_a,
            "adapters"_a = nb::none())
        .def("run", &run, "first"_a, "last"_a, "ids"_a, "positions"_a, "sequence"_a, "output_rows"_a,
             "seq_start"_a, "state_slot"_a, "tables"_a, "adapters"_a = nb::none())
        .def(
            "view",
            [](nb::handle_t<PyProgram> self, int64_t offset, int64_t rows, int64_t cols,
               int64_t stride_bytes) {
                if (rows < 0 || cols < 1 || stride_bytes < 4 || stride_bytes % 4 || offset % 4 ||
                    rows > std::numeric_limits<int32_t>::max() ||
                    cols > std::numeric_limits<int32_t>::max() ||
                    stride_bytes > std::numeric_limits<int32_t>::max())
                    throw std::invalid_argument("no such view of the arena");
                std::byte* data = nb::inst_ptr<PyProgram>(self)->program.arena(
                    offset, rows ? (rows - 1) * stride_bytes + cols * 4 : 0);
                return FloatArray(data, {static_cast<size_t>(rows), static_cast<size_t>(cols)}, self,
                                  {stride_bytes / 4, 1});
            },
            "offset"_a, "rows"_a, "cols"_a, "stride_bytes"_a)
        .def(
            "read",
            [](PyProgram& self, const std::string& format, int64_t offset, int64_t rows, int64_t cols,
               int64_t stride_bytes) {
                constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
                if (rows < 0 || cols < 1 || stride_bytes < (rows > 1) || rows > kLimit || cols > kLimit ||
                    stride_bytes > kLimit)
                    throw std::invalid_argument("no such rows in the arena");
                self.program.arena(
                    offset, rows ? (rows - 1) * stride_bytes + cols : 0);  // before anything is allocated
                FloatArray out = new_floats({static_cast<size_t>(rows), static_cast<size_t>(cols)});
                self.program.read(parse_row_format(format), offset, rows, cols, stride_bytes, out.data());
                return out;
            },
            "format"_a, "offset"_a, "rows"_a, "cols"_a, "stride_bytes"_a)
        .def(
            "bytes_view",
            [](nb::handle_t<PyProgram> self, int64_t offset, int64_t n_bytes) {
                std::byte* data = nb::inst_ptr<PyProgram>(self)->program.arena(offset, n_bytes);
                return nb::ndarray<nb::numpy, uint8_t>(data, {static_cast<size_t>(n_bytes)}, self);
            },
            "offset"_a, "n_bytes"_a)
        .def(
            "set_profile", [](PyProgram& self, bool on) { self.program.set_profile(on); }, "on"_a)
        .def("times_ns", [](const PyProgram& self) { return self.program.times_ns(); });

    m.def(
        "bandwidth",
        [](Pool& pool, int64_t n_bytes, int reps) {
            nb::gil_scoped_release release;
            return read_bandwidth(pool, n_bytes, reps) / 1e9;
        },
        "pool"_a, "n_bytes"_a, "reps"_a);
    m.def(
        "int8_peak",
        [](Pool& pool, const std::string& level) {
            const Level& found = find_level(level);
            nb::gil_scoped_release release;
            return int8_peak(pool, found) / 1e9;
        },
        "pool"_a, "level"_a);
}

}  // namespace zinc
