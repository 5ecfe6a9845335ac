#include "kernels/check.h"

namespace zinc {

const char* format_name(RowFormat format) {
    switch (format) {
        case RowFormat::f32: return "f32";
        case RowFormat::q8_32: return "q8_32";
        case RowFormat::q8_256: return "q8_256";
        case RowFormat::q15_32: return "q15_32";
        default: return "bf16";
    }
}

void require(const Launch& launch, bool ok, const char* text) {
    if (!ok) throw std::invalid_argument(std::string(launch.kernel->name) + ": " + text);
}

void require(const Launch& launch, bool ok, const std::string& text) { require(launch, ok, text.c_str()); }

void require_operands(const Launch& launch, size_t n_in, size_t n_out) {
    require(launch, launch.in.size() == n_in && launch.out.size() == n_out,
            "takes " + std::to_string(n_in) + " inputs and " + std::to_string(n_out) + " outputs, not " +
                std::to_string(launch.in.size()) + " and " + std::to_string(launch.out.size()));
}

void require_rows(const Launch& launch, const Operand& o, const char* name, int64_t cols) {
    require(launch, o.data != nullptr, std::string(name) + " must be rows in the arena");
    require(launch, cols < 0 || o.cols == cols,
            std::string(name) + " has " + std::to_string(o.cols) + " columns, not " + std::to_string(cols));
}

void require_rows(const Launch& launch, const Operand& o, const char* name, RowFormat format, int64_t cols) {
    require_rows(launch, o, name, cols);
    require(launch, o.format == format,
            std::string(name) + " is " + format_name(o.format) + ", not " + format_name(format));
}

void require_vector(const Launch& launch, const Operand& o, const char* name, int64_t cols) {
    require(launch, o.tensor && !o.tensor->format, std::string(name) + " must be a vector");
    require(launch, o.tensor->cols == cols,
            std::string(name) + " has " + std::to_string(o.tensor->cols) + " values, not " +
                std::to_string(cols));
}

}  // namespace zinc
